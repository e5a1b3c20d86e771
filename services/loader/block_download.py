"""The blocks of a weight file that are not there yet, over several connections, each block verified before it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import structlog

from services.common.checkpoint.digest import BLOCK_BYTES, block_digest
from services.common.checkpoint.header import Header
from services.common.stoppable import in_thread
from services.loader.block_runs import BlockRun
from services.loader.fetch import Fetch
from services.loader.remote_stream import RemoteStream

log = structlog.get_logger()


class BlockDownload(NamedTuple):
    """What is asked for: `runs`, which cover the `missing` blocks. In memory is one block for each connection."""

    header: Header
    missing: frozenset[int]
    runs: tuple[BlockRun, ...]
    fetch: Fetch

    @property
    def total_bytes(self) -> int:
        """What passes by."""
        return sum(end - begin for begin, end in map(self._extent, self.runs))

    async def run(self) -> None:
        """Every connection takes the next run; the first failure ends all.

        Raises:
            CorruptData: A block came wrong twice.
            HalogenError: As `RemoteStream.fill` says.
        """
        runs = iter(self.runs)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self.fetch.connections, len(self.runs))):
                    group.create_task(self._pull(runs))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _pull(self, runs: Iterator[BlockRun]) -> None:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        for run in runs:
            async with self.fetch.stream(*self._extent(run)) as stream:
                for index in range(run.first, run.end):
                    await self._take(stream, index, buffer)

    async def _take(self, stream: RemoteStream, index: int, buffer: memoryview) -> None:
        begin, end = self.header.block_extent(index)
        block = buffer[: end - begin]
        await stream.fill(block)
        if index not in self.missing or await self._keep(index, block):
            return
        log.warning("fetched_block_wrong", block=index)
        await stream.seek(begin)  # perhaps it was spoilt on its way: once more
        await stream.fill(block)
        if not await self._keep(index, block):
            raise self.header.block_mismatch(index, "does not match its digest in the store")

    async def _keep(self, index: int, block: memoryview) -> bool:
        """Writes the block unless it is wrong; tells whether it did."""
        return await in_thread(lambda: self._verify_and_write(index, block))

    def _verify_and_write(self, index: int, block: memoryview) -> bool:
        if block_digest(block) != self.header.digests[index]:
            return False
        self.fetch.partial.write(self.header.block_extent(index)[0], block)
        return True

    def _extent(self, run: BlockRun) -> tuple[int, int]:
        return self.header.block_extent(run.first)[0], self.header.block_extent(run.end - 1)[1]
