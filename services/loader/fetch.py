"""One file's way from a store into the cache: where from, where to, and who hears of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from services.common.checkpoint.partial_file import PartialFile
from services.loader.patience import Patience
from services.loader.remote_stream import RemoteFile, RemoteStream


class Fetch(NamedTuple):
    """The two ends of it.

    Attributes:
        remote: Where the bytes come from.
        partial: Where they go.
        connections: So many requests at a time.
        patience: Makes a fresh one for every sequence of requests.
        arrived: Told of bytes that came over the wire.
        progress: Told of bytes that came, or were there, each once.
    """

    remote: RemoteFile
    partial: PartialFile
    connections: int
    patience: Callable[[], Patience]
    arrived: Callable[[int], None]
    progress: Callable[[int], None]

    def stream(self, begin: int, end: int) -> contextlib.AbstractAsyncContextManager[RemoteStream]:
        """The remote file's bytes from `begin` to `end`."""
        return RemoteStream(self.remote, begin, end, self.patience(), self._came)

    async def read(self, begin: int, end: int) -> bytes:
        """The same, all at once; raises what `RemoteStream.fill` does."""
        window = bytearray(end - begin)
        async with self.stream(begin, end) as stream:
            await stream.fill(memoryview(window))
        return bytes(window)

    def _came(self, by_bytes: int) -> None:
        self.arrived(by_bytes)
        self.progress(by_bytes)
