"""``python -m bench.mixed_fifo LOADER ARTIFACT_ID``: the plain batcher at work, told by lines what to replay.

A line ``FROM TO`` has it replay the arrivals in one file and write what became of them to another.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from bench.arrivals import Arrival, prompt_of
from bench.fifo_batch import FIXED_TOKENS, FifoBatch, Row
from bench.lone_model import LoneModel, default
from bench.mixed_program import Replayer, run_program
from bench.replay import Fate, Fill, Replay
from services.common.kv import BLOCK_TOKENS


class Fifo:
    """Replays arrivals through a `FifoBatch`, as fast as it steps.

    Args:
        lone: The model.
    """

    def __init__(self, lone: LoneModel) -> None:
        arena_tokens = lone.arena.pool.total_bytes // lone.model.block_bytes * BLOCK_TOKENS
        self._vocabulary = lone.model.vocab_size
        self._batch = FifoBatch(
            lone.model,
            arena_tokens=arena_tokens,
            chunk_tokens=default("chunk_tokens"),
            max_batch=default("max_batch"),
        )

    async def replay(self, arrivals: list[Arrival]) -> Replay:
        return await asyncio.to_thread(self._replay, arrivals)

    def _replay(self, arrivals: list[Arrival]) -> Replay:
        rows = [
            Row(number, prompt_of(number, each, self._vocabulary), each.tokens, each.most)
            for number, each in enumerate(arrivals)
        ]
        log = _Log(arrivals)
        coming = 0
        while coming < len(rows) or not self._batch.is_idle:
            while coming < len(rows) and arrivals[coming].at_s <= log.now_s:
                self._batch.add(rows[coming])
                coming += 1
            if self._batch.is_idle:
                time.sleep(max(0.0, arrivals[coming].at_s - log.now_s))
                continue
            for row, is_over in self._batch.step():
                log.note(row.name, is_over=is_over)
            log.fills.append(self._fill(log.now_s))
        return Replay(log.fates, log.fills, log.now_s)

    def _fill(self, at_s: float) -> Fill:
        running = self._batch.running
        return Fill(
            at_s,
            stored=sum(row.computed for row in running),
            taken=sum(row.taken_tokens for row in running),
            lent=sum(len(row.blocks) for row in running) * FIXED_TOKENS,
            running=len(running),
        )


class _Log:
    """What has become of whom."""

    def __init__(self, arrivals: list[Arrival]) -> None:
        self.fates: list[Fate] = []
        self.fills: list[Fill] = []
        self._arrivals = arrivals
        self._firsts: dict[int, float] = {}
        self._began_s = time.perf_counter()

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self._began_s

    def note(self, number: int, *, is_over: bool) -> None:
        """A request has got a token."""
        arrival = self._arrivals[number]
        waited_s = self.now_s - arrival.at_s
        first_s = self._firsts.setdefault(number, waited_s)
        if is_over:
            self.fates.append(Fate(arrival.is_long, first_s, waited_s))


@contextlib.asynccontextmanager
async def _open(lone: LoneModel) -> AsyncIterator[Replayer]:
    yield Fifo(lone)


if __name__ == "__main__":
    run_program(__doc__, sys.argv[1:], _open)
