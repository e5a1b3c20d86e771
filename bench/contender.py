"""Whoever is asked for workloads, and is timed."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from bench.ask import Ask
from bench.program import Program
from bench.workload import Timing, Workload


class Contender(Protocol):
    """One of those who take turns.

    Attributes:
        name: In the tables.
        roots: Ids of its processes, whose descendants are its own too.
        ready_s: Seconds from its start until it could be asked.
    """

    @property
    def name(self) -> str: ...

    @property
    def roots(self) -> tuple[int, ...]: ...

    @property
    def ready_s(self) -> float: ...

    async def run(self, workload: Workload, seed: int) -> list[Timing]:
        """Makes all requests of the workload at once, and waits for the last token of each."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class EngineContender:
    """An engine in a program of its own, which makes the requests itself.

    Attributes:
        helpers: Ids of processes that it needs.
    """

    name: str
    program: Program
    ready_s: float
    helpers: tuple[int, ...] = ()

    @property
    def roots(self) -> tuple[int, ...]:
        return (self.program.pid, *self.helpers)

    async def run(self, workload: Workload, seed: int) -> list[Timing]:
        told = await self.program.ask(workload.name, str(seed))
        return [Timing(*times) for times in told["timings"]]


class Heard(NamedTuple):
    """When the first and the last token of an answer came, by the performance counter, and how many there were."""

    first_s: float
    last_s: float
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class ServedContender:
    """A server, asked from this process.

    Attributes:
        vocabulary: Of its model.
        ask: Makes one request of it.
    """

    name: str
    roots: tuple[int, ...]
    ready_s: float
    vocabulary: int
    ask: Callable[[Ask], Awaitable[Heard]]

    async def run(self, workload: Workload, seed: int) -> list[Timing]:
        asks = workload.asks(seed, self.vocabulary)
        began_s = time.perf_counter()
        heard = await asyncio.gather(*(self.ask(ask) for ask in asks))
        return [Timing(each.first_s - began_s, each.last_s - began_s, each.tokens) for each in heard]
