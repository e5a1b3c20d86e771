"""A stretch of a remote file, in order, over as many requests as it takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Protocol, Self

from services.loader.patience import BrokenOff, Patience

TOLD_BYTES: Final = 512 << 10  # progress is told in steps of so many bytes


class Body(Protocol):
    """What one request brings."""

    async def read(self, most_bytes: int) -> bytes:
        """The next bytes, at least one; raises BrokenOff when there are no more."""
        ...


class RemoteFile(Protocol):
    """A file that is read by ranges."""

    @property
    def takes_ranges(self) -> bool:
        """Whether a part costs no more than itself; known after the first request."""
        ...

    def open(self, begin: int, end: int) -> AbstractAsyncContextManager[Body]:
        """One request; what it gives may end before `end`."""
        ...


class RemoteStream:
    """The bytes from `begin` to `end`; a scope. After a failure it goes on from the byte that it had reached.

    Args:
        file: Where they come from.
        patience: Ends it when the store fails again and again.
        progress: Told how many bytes came that had not come before.
    """

    def __init__(
        self, file: RemoteFile, begin: int, end: int, patience: Patience, progress: Callable[[int], None]
    ) -> None:
        self._file = file
        self._position = self._told = begin
        self._end = end
        self._patience = patience
        self._progress = progress
        self._request = contextlib.AsyncExitStack()
        self._body: Body | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hang_up()
        self._tell()

    async def fill(self, window: memoryview) -> None:
        """Takes the next bytes, as many as fit.

        Raises:
            Unavailable: The store fails again and again.
            HalogenError: As `RemoteFile.open` says.
        """
        filled = 0
        while filled < len(window):
            try:
                piece = await self._read(len(window) - filled)
            except BrokenOff as failure:
                await self._hang_up()
                await self._patience.after(failure)
                continue
            window[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._advance(len(piece))

    async def seek(self, position: int) -> None:
        """Goes on from another byte, in a new request."""
        await self._hang_up()
        self._position = position

    async def _read(self, most_bytes: int) -> bytes:
        if self._body is None:
            self._body = await self._request.enter_async_context(self._file.open(self._position, self._end))
        return await self._body.read(most_bytes)

    def _advance(self, by_bytes: int) -> None:
        self._position += by_bytes
        self._patience.arrived(by_bytes)
        if self._position - self._told >= TOLD_BYTES:
            self._tell()

    def _tell(self) -> None:
        if self._position > self._told:
            self._progress(self._position - self._told)
            self._told = self._position

    async def _hang_up(self) -> None:
        self._body = None
        await self._request.aclose()
