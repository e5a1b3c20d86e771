"""One file of an HTTP store, by ranges: the same file from the first byte to the last, or an error."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import aiohttp
from yarl import URL

from services.common.checkpoint.manifest import ManifestFile
from services.common.errors import CorruptData
from services.loader.patience import BrokenOff
from services.loader.range_answer import RangeAnswer

PIECE_BYTES: Final = (
    256 << 10
)  # what is not taken yet is as much at most, and is lost when a connection breaks

_IN_WORDS: Final[tuple[tuple[type[Exception], str], ...]] = (  # the first that fits
    (TimeoutError, "it says nothing for too long"),
    (aiohttp.ClientSSLError, "it is not trusted: its certificate is not valid here"),
    (aiohttp.ClientConnectorDNSError, "its host's name is not known"),
    (aiohttp.ClientConnectorError, "nobody listens at its address"),
    (aiohttp.ClientPayloadError, "its answer is cut off"),
    (aiohttp.ClientResponseError, "it does not speak HTTP"),
    (Exception, "the connection breaks"),
)


class OtherVersion(Exception):
    """The store has another version of a file than it has begun to send; what was verified is right all the same."""


Get = Callable[[URL, Mapping[str, str]], AbstractAsyncContextManager[aiohttp.ClientResponse]]


class HttpFile:
    """The file; remembers which version of it the store has begun to send.

    Args:
        url: Its address.
        file: What it should be.
        get: Makes one request.
    """

    def __init__(self, url: URL, file: ManifestFile, get: Get) -> None:
        self._url = url
        self._file = file
        self._get = get
        self._first: RangeAnswer | None = None

    @property
    def takes_ranges(self) -> bool:
        """Whether parts can be asked for; a store that does not take ranges sends all from the start."""
        return self._first is not None and self._first.is_part

    @contextlib.asynccontextmanager
    async def open(self, begin: int, end: int) -> AsyncIterator[HttpBody]:
        """One request for the bytes from `begin` to `end`; what it gives may end sooner, or later.

        Raises:
            BrokenOff: Nobody answered, or another request may help.
            OtherVersion: The store has another one by now.
            NotFound: It is not there.
            PreconditionFailed: The store does not let this loader have it.
            CorruptData: It is not as long as the manifest says.
        """
        async with self._get(self._url, self._headers(begin, end)) as response:
            answer = RangeAnswer.of(response.status, response.headers, self._file.path)
            self._check(answer, begin)
            body = HttpBody(response)
            await body.skip(begin - answer.begin)
            yield body

    def _headers(self, begin: int, end: int) -> dict[str, str]:
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        if self._first and self._first.version.startswith('"'):  # weak ones are not allowed there
            headers["If-Range"] = self._first.version
        return headers

    def _check(self, answer: RangeAnswer, begin: int) -> None:
        first = self._first or answer
        if (answer.version, answer.is_part) != (first.version, first.is_part):
            raise OtherVersion(f"{answer.version or 'no version'} after {first.version or 'no version'}")
        if answer.total_bytes not in (None, self._file.size_bytes):
            raise CorruptData(
                f"{self._file.path} has {answer.total_bytes} bytes in the store, not {self._file.size_bytes}; "
                "upload the artifact again",
                metadata={"file": self._file.path, "region": "length"},
            )
        if answer.begin != (begin if answer.is_part else 0):
            raise BrokenOff("it sends another part than it was asked for")
        self._first = first


class HttpBody:
    """What a request brings, in order."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def read(self, most_bytes: int) -> bytes:
        """The next bytes, at least one.

        Raises:
            BrokenOff: There are none, or none come.
        """
        with breaking_off():
            piece = await self._response.content.read(min(most_bytes, PIECE_BYTES))
        if not piece:
            raise BrokenOff("it ends too early")
        return piece

    async def skip(self, count: int) -> None:
        """Passes over so many bytes."""
        while count:
            count -= len(await self.read(count))


@contextlib.contextmanager
def breaking_off() -> Iterator[None]:
    """What goes wrong with a connection in the scope is BrokenOff."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as failure:
        raise BrokenOff(next(words for kind, words in _IN_WORDS if isinstance(failure, kind))) from failure
