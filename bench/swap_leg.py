"""One pair of artifacts, swapped again and again under load; then the same as it is done without a hot swap."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from typing import Final, NamedTuple

from bench.ask import Mix
from bench.swap_load import Answer, Load
from bench.swap_memory import Memory
from bench.swap_models import Pair
from bench.swap_oracle import Oracle
from bench.swap_system import System, running
from bench.swap_windows import Window, windows
from services.cli.home import Home
from services.common.ids import ArtifactId

SHARE: Final = 0.6  # of the capacity
_LEAST_TTL_S: Final = 1.0
_SPARE: Final = 1.3  # of a drain, as arrivals come by chance
_SEED: Final = 7


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """What is swapped, and how.

    Attributes:
        name: For people, and the end of its figures' names.
        window_tokens: That are delivered inside of each window at least: drains are made as long as that takes.
        steady_s: Of load before every swap.
        capacity_s: Of measuring capacity.
        prompts: How many different ones there are.
        kv_arena_bytes: Of the engine: so small that all of it has soon been used, and what is held holds still.
        settling: Swaps under load before anything is looked at: heaps grow until they have seen all that comes, which
            takes some hundred swaps; what rises then, leaks.
        is_cold: Whether what comes is taken out of memory first.
        is_large: Whether its windows count: what is promised of tokens and times is promised of the larger models.
    """

    name: str
    pair: Pair
    swaps: int
    mix: Mix
    window_tokens: int
    steady_s: float
    capacity_s: float
    prompts: int = 20
    kv_arena_bytes: int = 256 << 20
    settling: int = 0  # even: the pair then stands as it stood
    is_cold: bool = False
    is_large: bool = True


class StopLoadStart(NamedTuple):
    """The way without a hot swap.

    Attributes:
        unserved_s: From the stop to the first token of what comes.
        refused: Requests that came in vain.
    """

    unserved_s: float
    refused: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """What was seen.

    Attributes:
        capacity: Tokens a second.
        applied_s: Of every swap, from the publish to the first request that is given to what came.
        memory: Before the first swap and after each, when what went has gone.
        wrong_tokens: Over all answers.
        differences: Answers that are others, after all swaps, than before.
    """

    leg: Leg
    capacity: float
    begin_s: float
    end_s: float
    answers: list[Answer]
    applied_s: list[float]
    memory: list[Memory]
    windows: list[Window]
    wrong_tokens: int
    differences: int
    baseline: StopLoadStart


async def swap(leg: Leg, home: Home) -> Swapped:
    """Runs a leg in a system of its own."""
    flags = {"engine": ("--kv-arena-bytes", str(leg.kv_arena_bytes))}
    async with running(home, _LEAST_TTL_S, flags) as system:
        capacity = await _Run(leg, system).capacity()
    ttl_s = max(_LEAST_TTL_S, _SPARE * leg.window_tokens / (SHARE * capacity))  # a drain lasts as long
    async with running(home, ttl_s, flags) as system:
        return await _Run(leg, system).run(capacity)


class _Run:
    """A leg under way."""

    def __init__(self, leg: Leg, system: System) -> None:
        chance = random.Random(_SEED)
        asks = leg.mix.asks(chance, leg.prompts)
        self._leg = leg
        self._system = system
        self._load = Load(system.client, asks, chance)
        self._oracle = Oracle(self._load, asks)
        self._applied_s: list[float] = []
        self._memory: list[Memory] = []

    async def capacity(self) -> float:
        """Tokens a second, of the first of the pair."""
        await self._system.operator.register(*self._leg.pair)
        await self._settle(self._leg.pair[0])
        return await self._load.capacity(self._leg.capacity_s)

    async def run(self, capacity: float) -> Swapped:
        await self._system.operator.register(*self._leg.pair)
        for artifact_id in self._leg.pair:
            await self._settle(artifact_id)
            await self._oracle.learn(artifact_id)
        rate = SHARE * capacity / self._load.tokens_per_request
        begin_s = time.time()
        async with self._load.arriving(rate):
            for number in range(self._leg.settling):
                await self._settle(self._leg.pair[number % 2])
            await self._swaps()
            end_s = time.time()
        found = windows(self._system.engine_log())
        return Swapped(
            leg=self._leg,
            capacity=capacity,
            begin_s=begin_s,
            end_s=end_s,
            answers=self._load.answers,
            applied_s=self._applied_s,
            memory=self._memory,
            windows=[window for window in found if begin_s <= window.begin_s],
            wrong_tokens=sum(map(self._oracle.wrong_tokens, self._load.answers)),
            baseline=await self._stop_load_start(rate),
            differences=await self._differences(),
        )

    async def _swaps(self) -> None:
        await asyncio.sleep(self._leg.steady_s)
        await self._look()
        for number in range(self._leg.swaps):
            coming = self._leg.pair[number % 2]
            if self._leg.is_cold:
                await asyncio.to_thread(self._system.make_cold, coming)
            self._applied_s.append(await self._system.operator.swap(coming))
            await self._system.operator.until_alone(coming)
            await self._look()
            await asyncio.sleep(self._leg.steady_s)

    async def _look(self) -> None:
        self._memory.append(await asyncio.to_thread(self._system.memory))

    async def _settle(self, artifact_id: ArtifactId) -> None:
        await self._system.operator.swap(artifact_id)
        await self._system.operator.until_alone(artifact_id)

    async def _stop_load_start(self, rate: float) -> StopLoadStart:
        """Nothing is served from the stop on; what runs is waited for, then what comes is loaded and begins."""
        load = self._load.again()
        coming = self._leg.pair[self._leg.swaps % 2]
        async with load.arriving(rate):
            await asyncio.sleep(self._leg.steady_s)
            stopped_s = time.time()
            await self._system.operator.unpublish()
            await load.quiet()
            if self._leg.is_cold:
                await asyncio.to_thread(self._system.make_cold, coming)
            await self._system.operator.swap(coming)
            await asyncio.sleep(self._leg.steady_s)
        firsts = [answer.deliveries[0].at_s for answer in load.answers if coming in answer.artifact_ids]
        refused = sum(not answer.is_sound for answer in load.answers)
        return StopLoadStart(min(firsts) - stopped_s, refused)

    async def _differences(self) -> int:
        differences = 0
        for artifact_id in self._leg.pair:
            await self._settle(artifact_id)
            differences += await self._oracle.differences(artifact_id)
        return differences
