"""What a store's answer to a request for a part of a file says it brings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

from services.common.errors import CorruptData, HalogenError, NotFound, PreconditionFailed
from services.loader.patience import BrokenOff

_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_PASSING: Final = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_ABSENT: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})


class RangeAnswer(NamedTuple):
    """The bytes from `begin`, and what they are a part of.

    Attributes:
        total_bytes: Of the whole file; None where the store does not say.
        version: ETag, or else Last-Modified; empty where the store says neither.
        is_part: Whether the store takes ranges.
    """

    begin: int
    total_bytes: int | None
    version: str
    is_part: bool

    @classmethod
    def of(cls, status: int, headers: Mapping[str, str], what: str) -> RangeAnswer:
        """Reads an answer.

        Args:
            status: Of HTTP; no redirect.
            headers: Looked up without regard to case.
            what: The file's name, for the message.

        Raises:
            BrokenOff: Another request may help.
            NotFound: It is not there.
            PreconditionFailed: The store does not let this loader have it.
            CorruptData: The file ends before the range does.
        """
        if headers.get("Content-Encoding", "identity") != "identity":
            raise _refused(what, "compresses it; serve artifacts as they are")
        version = headers.get("ETag") or headers.get("Last-Modified", "")
        match status:
            case HTTPStatus.OK:
                length = headers.get("Content-Length", "")
                return cls(0, int(length) if length.isdigit() else None, version, is_part=False)
            case HTTPStatus.PARTIAL_CONTENT:
                begin, total_bytes = _content_range(headers.get("Content-Range", ""))
                return cls(begin, total_bytes, version, is_part=True)
        raise _failure(status, what)


def _content_range(text: str) -> tuple[int, int | None]:
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        raise BrokenOff("it sends a part without saying which")
    begin, _, total = found.groups()
    return int(begin), None if total == "*" else int(total)


def _failure(status: int, what: str) -> BrokenOff | HalogenError:
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return BrokenOff(f"it answers {status}")
    if status in _ABSENT:
        return NotFound(
            f"{what} is not in the store; upload the artifact's files there, its manifest last",
            reason="NOT_IN_STORE",
        )
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return CorruptData(
            f"{what} is shorter in the store than its manifest says; upload the artifact again",
            metadata={"file": what, "region": "length"},
        )
    return _refused(what, f"answers {status}; let this loader read it: see --store and --store-token-file")


def _refused(what: str, why: str) -> PreconditionFailed:
    return PreconditionFailed(f"{what}: the store {why}", reason="STORE_REFUSES")
