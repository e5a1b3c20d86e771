"""Contenders that take turns at workloads, with a look at the memory's bandwidth around each."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from bench.busy import Busy
from bench.contender import Contender
from bench.engine_contenders import Contenders, Start
from bench.engine_names import EVERYBODY, LLAMACPP, OURS, SERVED_OURS
from bench.figure import Figure
from bench.program import Program, program
from bench.turn import Turn, Turns
from bench.workload import WORKLOADS, Workload

_DECODES: Final = ("decode128", "decode1024", "prefill512", "prefill2048")


class Section(NamedTuple):
    """Who is measured beside whom, at what.

    Attributes:
        shape: The model's.
        served: The names of those that are asked as servers.
        engines: The names of those that are asked without.
    """

    name: str
    shape: str
    workloads: tuple[str, ...]
    engines: tuple[str, ...] = ()
    served: tuple[str, ...] = ()


SECTIONS: Final = {
    each.name: each
    for each in (
        Section("small", "small", (*_DECODES, "mix8", "mix32", "mix64"), engines=EVERYBODY),
        Section("medium", "medium", (*_DECODES, "mix8", "mix32"), engines=EVERYBODY),
        Section("served", "small", ("single", "mix8", "mix32", "mix64"), served=EVERYBODY),
        Section("wire", "small", ("mix32",), engines=(OURS,), served=(OURS,)),
    )
}
ALONE: Final = {LLAMACPP: _DECODES}  # an engine that batches in its server only


class Session:
    """One section with everybody started.

    Args:
        section: It.
        contenders: By the name that their turns are known by.
        probe: A `bench.bandwidth`.
        turns: Where new ones go.
    """

    def __init__(
        self, section: Section, contenders: dict[str, Contender], probe: Program, turns: Turns
    ) -> None:
        self._section = section
        self._contenders = contenders
        self._probe = probe
        self._turns = turns

    def starts(self) -> list[Figure]:
        """How long everybody took from its start until it could be asked."""
        return [
            Figure(name=f"{self._section.name}_ready_s_{name}", value=each.ready_s, unit="s", better="lower")
            for name, each in self._contenders.items()
        ]

    async def warm(self) -> None:
        """Everybody once at everything, as whoever serves has done long since."""
        for workload in self._workloads():
            for name, contender in self._able(workload):
                print(f"{self._section.name}: {name} warms up at {workload.name}", flush=True)
                await contender.run(workload, seed=0)

    async def pair(self, seed: int) -> None:
        """Everybody's turn at everything, one after the other.

        Args:
            seed: Of the requests: everybody gets the same.
        """
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        for workload in self._workloads():
            before = await self._bandwidth()
            for name, contender in self._able(workload):
                before = await self._turn(workload, name, contender, f"{now} {seed}", seed, before)

    async def _turn(
        self, workload: Workload, name: str, contender: Contender, where: str, seed: int, before: float
    ) -> float:
        """One turn; returns the bandwidth after it."""
        roots = contender.roots
        busy = Busy.look(roots)
        repeats = [await contender.run(workload, seed * 100 + each) for each in range(workload.repeats)]
        others = busy.others_cores(Busy.look(roots))
        after = await self._bandwidth()
        turn = Turn.of(
            workload, repeats, section=self._section.name, contender=name, round=where,
            bandwidth=(before + after) / 2, others_cores=others,
        )  # fmt: skip
        self._turns.add(turn)
        print(turn, flush=True)
        return after

    def _workloads(self) -> list[Workload]:
        return [WORKLOADS[name] for name in self._section.workloads]

    def _able(self, workload: Workload) -> list[tuple[str, Contender]]:
        """Those who can be asked for it."""
        served = set(self._section.served)
        return [
            (name, contender)
            for name, contender in self._contenders.items()
            if name in served or workload.name in ALONE.get(name, self._section.workloads)
        ]

    async def _bandwidth(self) -> float:
        return float((await self._probe.ask("look"))["gb_per_s"])


@contextlib.asynccontextmanager
async def session(
    section: Section, everybody: Contenders, turns: Turns, left_out: Sequence[str]
) -> AsyncIterator[Session]:
    """Starts a section's contenders for the scope, one after the other.

    Args:
        left_out: Names of those that are not to be started.
    """
    logs, threads = everybody.work, str(everybody.threads)
    async with AsyncExitStack() as stack:
        probe = await stack.enter_async_context(
            program("bench.bandwidth", "--threads", threads, logs=Path(logs))
        )
        running: dict[str, Contender] = {}
        for name, start, who in _starts(section, everybody):
            if who not in left_out:
                running[name] = await stack.enter_async_context(start(who))
                print(f"{section.name}: {name} is ready after {running[name].ready_s:.1f} s", flush=True)
        yield Session(section, running, probe, turns)


def _starts(section: Section, everybody: Contenders) -> list[tuple[str, Start, str]]:
    """The name of each turn's taker, how it is started, and who it is."""
    both = bool(section.engines and section.served)
    engines = [(name, everybody.engine, name) for name in section.engines]
    served = [
        (SERVED_OURS if both and name == OURS else name, everybody.served, name) for name in section.served
    ]
    return [*engines, *served]
