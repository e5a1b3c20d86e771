"""How soon a model answers: from a loader's preparing it, and from the start of all that serves it."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from bench.contender import Contender
from bench.engine_contenders import Contenders
from bench.engine_names import OURS, VLLM
from bench.figure import Figure
from bench.lone_loader import lone_loader
from bench.program import program
from bench.workload import WORKLOADS

MOST_FIRST_TOKEN_S: Final = 1.0
MOST_FIRST_REQUEST: Final = 1.5  # times the median of those that follow
_LATER: Final = 7
_LOADER_THREADS: Final = 8
_SINGLE: Final = WORKLOADS["single"]


class ServerStart(NamedTuple):
    """One start of a server.

    Attributes:
        ready_s: From its start until it could be asked.
        first_s: Of its first request.
        later_s: Of a later one: the median of some.
    """

    name: str
    ready_s: float
    first_s: float
    later_s: float

    @classmethod
    async def of(cls, contender: Contender) -> ServerStart:
        """Asks a server that has just started."""
        took_s = [(await contender.run(_SINGLE, seed))[0].last_s for seed in range(1 + _LATER)]
        return cls(contender.name, contender.ready_s, took_s[0], statistics.median(took_s[1:]))

    @property
    def first_ratio(self) -> float:
        return self.first_s / self.later_s

    def __str__(self) -> str:
        then = f"first request {self.first_s:.2f} s, later ones {self.later_s:.2f} s"
        return f"start    {self.name:15} ready after {self.ready_s:.1f} s, {then}"


async def figures(everybody: Contenders, rounds: int, left_out: Sequence[str]) -> list[Figure]:
    """What is promised of starts.

    Args:
        left_out: Names of peers that are not to be started.
    """
    firsts_s = [await _first_token_s(everybody) for _ in range(rounds)]
    starts = [start async for start in _server_starts(everybody, rounds, left_out)]
    ready_s = {
        name: statistics.median(found)
        for name in (OURS, VLLM)
        if (found := [start.ready_s for start in starts if start.name == name])
    }
    first = max((start.first_ratio for start in starts if start.name == OURS), default=None)
    return [
        _most("prepare_to_first_token_s", statistics.median(firsts_s), "s", MOST_FIRST_TOKEN_S),
        _most("first_request_vs_median", first, "x", MOST_FIRST_REQUEST),
        _most("served_ready_s", ready_s.get(OURS), "s", None),
        _most("served_ready_s_vllm", ready_s.get(VLLM), "s", None),
    ]


async def _first_token_s(everybody: Contenders) -> float:
    """From PrepareArtifact of an artifact that lies in the loader's store, in fresh processes."""
    model, logs = everybody.model, everybody.work
    async with (
        lone_loader(model.store, everybody.place, _LOADER_THREADS, logs) as loader,
        program("bench.first_token", loader.address, logs=logs) as engine,
    ):
        told = await engine.ask("v2", model.artifact_id)
    return float(told["first_token_s"])


async def _server_starts(
    everybody: Contenders, rounds: int, left_out: Sequence[str]
) -> AsyncIterator[ServerStart]:
    for _ in range(rounds):
        for name in (OURS, VLLM):
            if name not in left_out:
                async with everybody.served(name) as contender:
                    print(start := await ServerStart.of(contender), flush=True)
                yield start


def _most(name: str, value: float | None, unit: str, goal: float | None) -> Figure:
    skipped = "not started" if value is None else ""
    return Figure(name=name, value=value, unit=unit, goal=goal, better="lower", skipped=skipped)
