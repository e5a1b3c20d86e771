"""What was found of an artifact on one build: written beside it by engines and operators, never into its id."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Final, NamedTuple

import structlog

from services.common.errors import Conflict, InvalidRequest, NotFound
from services.common.ids import ArtifactId
from services.common.registry import keys
from services.common.registry.qualification_records import QualificationRecord, Statement
from services.common.registry.store import Ambiguous, Entry, Listing, Put, Store, Unchanged
from services.gateway.operator_words import MAX_WORDS, check_plain, check_words, checked_artifact_id

MAX_STATEMENTS: Final = 100

_TRIES: Final = 16
_GIT_COMMIT: Final = re.compile(r"[0-9a-fA-F]{7,64}")

log = structlog.get_logger()


class QualifyOrder(NamedTuple):
    """What an operator says of an artifact.

    Attributes:
        build: The root of the build, or its beginning; empty while there is one only.
        approved: None: no word on it. False withdraws.
        accuracy: Share of right answers, 0 to 1; None: no word on it.
        git_commit: What it was trained from, 7 to 64 hexadecimal digits; empty: no word on it.
        data_set: What its accuracy was measured on; empty: no word on it.
    """

    artifact_id: ArtifactId
    build: str
    approved: bool | None
    accuracy: float | None
    git_commit: str
    data_set: str
    who: str
    why: str


class Qualified(NamedTuple):
    """A record and what it is of."""

    artifact_id: ArtifactId
    build: str
    record: QualificationRecord


class Qualifications:
    """Adds to records by compare-and-set; engines make them when they first serve an artifact.

    Args:
        store: The registry.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def qualify(self, order: QualifyOrder) -> Qualified:
        """Puts a statement on record, after those that are there; what was just said is not said again.

        Raises:
            InvalidRequest: The order says nothing, or something that is not valid, or fits several builds.
            NotFound: No engine has served the artifact yet, or none of such a build.
            Conflict: Others keep coming first, or the record is full.
        """
        _check(order)
        statement = _statement(order)
        for _ in range(_TRIES):
            entry = _chosen(await self._store.list(keys.qualifications(order.artifact_id)), order)
            record = QualificationRecord.decode(entry.value)
            if _is_on_record(record, statement):
                return _qualified(entry, record)
            extended = _extended(record, statement)
            if await self._replace(entry, extended):
                log.info("artifact_qualified", **order._asdict())
                return _qualified(entry, extended)
        raise Conflict("others keep coming first; try again", retry_after_s=1.0)

    async def _replace(self, entry: Entry, record: QualificationRecord) -> bool:
        """False where that is not certain: the next look at the registry tells."""
        try:
            return await self._store.commit(
                [Unchanged(entry.key, entry.mod_revision)], [Put(entry.key, record.encode())]
            )
        except Ambiguous:
            return False


def _qualified(entry: Entry, record: QualificationRecord) -> Qualified:
    return Qualified(*keys.split_qualification_key(entry.key), record)


def _check(order: QualifyOrder) -> None:
    check_words(order.who, order.why)
    checked_artifact_id(order.artifact_id)
    if order.approved is None and order.accuracy is None and not (order.git_commit or order.data_set):
        raise InvalidRequest("say something: an approval, an accuracy, a git commit or a data set")
    if order.accuracy is not None and not (math.isfinite(order.accuracy) and 0 <= order.accuracy <= 1):
        raise InvalidRequest(f"accuracy is {order.accuracy}; give the share of right answers, 0 to 1")
    if order.git_commit and not _GIT_COMMIT.fullmatch(order.git_commit):
        raise InvalidRequest(
            f"git_commit {order.git_commit[:80]!r} is not 7 to 64 hexadecimal digits; give what this prints: "
            "git rev-parse HEAD"
        )
    if len(order.data_set) > MAX_WORDS:
        raise InvalidRequest(f"data_set has at most {MAX_WORDS} characters")
    check_plain("data_set", order.data_set)


def _chosen(listing: Listing, order: QualifyOrder) -> Entry:
    """The one entry of the build that is meant."""
    builds = {keys.split_qualification_key(entry.key)[1]: entry for entry in listing.entries}
    if not builds:
        raise NotFound(
            f"no engine has served artifact {order.artifact_id[:12]} yet; publish it first, to canary for example",
            reason="NOT_QUALIFIED",
        )
    matching = [build for build in builds if build.startswith(order.build)]
    told = ", ".join(f"{build[:12]} ({_device(entry)})" for build, entry in sorted(builds.items()))
    if not matching:
        raise NotFound(
            f"there is no build {order.build[:12]!r} of it; there are: {told}", reason="NOT_QUALIFIED"
        )
    if len(matching) > 1:
        raise InvalidRequest(f"several builds have served it; give one of: {told}", reason="BUILD_AMBIGUOUS")
    return builds[matching[0]]


def _device(entry: Entry) -> str:
    return QualificationRecord.decode(entry.value).runtime_build


def _statement(order: QualifyOrder) -> Statement:
    return Statement(
        time=dt.datetime.now(dt.UTC).isoformat(),
        who=order.who,
        why=order.why,
        approved=order.approved,
        accuracy=order.accuracy,
        git_commit=order.git_commit,
        data_set=order.data_set,
    )


def _is_on_record(record: QualificationRecord, statement: Statement) -> bool:
    """Whether a try whose answer was lost has written it, or it says what was said last, only later."""
    last = [each.model_copy(update={"time": statement.time}) for each in record.statements[-1:]]
    return statement in (*record.statements, *last)


def _extended(record: QualificationRecord, statement: Statement) -> QualificationRecord:
    if len(record.statements) >= MAX_STATEMENTS:
        raise Conflict(f"{MAX_STATEMENTS} statements are on record, which is the most", reason="RECORD_FULL")
    return record.model_copy(update={"statements": (*record.statements, statement)})
