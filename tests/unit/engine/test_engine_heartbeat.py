"""An engine whose steps stop says so, and takes it back when they go on; one that is only slow says nothing."""

from __future__ import annotations

import asyncio
import time

from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.stepper import FinishReason
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request


class Told:
    """What the engine says of itself."""

    def __init__(self, engine: Engine) -> None:
        self.all: list[bool] = []
        self.news = asyncio.Event()
        engine.on_stall = self.hear

    def hear(self, is_stalled: bool) -> None:
        self.all.append(is_stalled)
        self.news.set()


def engine(step_timeout_s: float, chunk_tokens: int = 512) -> Engine:
    return Engine(
        Arena(64 * BLOCK_BYTES), chunk_tokens=chunk_tokens, max_batch=8, step_timeout_s=step_timeout_s
    )


async def test_s_e1_a_step_that_hangs_is_noticed_and_so_is_its_end() -> None:
    """Work is pending and no step finishes: stalled. The step finishes: not stalled, and nothing is lost.

    Fault injection: turns red when Engine.run does not begin the heartbeat, or _beat does not end the stall.
    """
    gate = Gate()
    async with engine(0.05) as running:
        told = Told(running)
        async with running.run(generation(CountingModel(gate)), request(max_tokens=3)) as stream:
            await asyncio.wait_for(told.news.wait(), 30)
            assert [True] == told.all
            gate.open(3)
            pieces = [piece async for piece in stream]
        assert [True, False] == told.all
    assert FinishReason.LENGTH is pieces[-1].finish


async def test_what_comes_while_an_engine_hangs_is_no_progress() -> None:
    """New requests do not make a frozen engine look alive.

    Fault injection: turns red when Engine.run counts every request as progress.
    """
    gate = Gate()
    async with engine(0.3) as running:
        told = Told(running)
        made = generation(CountingModel(gate))
        async with running.run(made, request("first", max_tokens=1)):
            for number in range(30):
                async with running.run(made, request(f"later {number}", max_tokens=1)):
                    await asyncio.sleep(0.02)
            assert [True] == told.all
            gate.open(100)


async def test_an_idle_engine_does_not_stall() -> None:
    """Nothing to do is no failure, however long it lasts."""
    async with engine(1.0) as running:
        told = Told(running)
        async with running.run(generation(CountingModel()), request(max_tokens=2)) as stream:
            async for _ in stream:
                pass
        await asyncio.sleep(1.5)
        assert [] == told.all


async def test_s_e2_a_long_prefill_is_no_stall() -> None:
    """A prompt that takes twice the patience, and gives no token in that time: each chunk of it is a beat.

    Fault injection: turns red when Engine._beat counts only updates with a token.
    """
    async with engine(1.0, chunk_tokens=1) as running:
        told = Told(running)
        slow = CountingModel(lambda _step: time.sleep(0.03))
        async with running.run(generation(slow), request(prompt=[1] * 64, max_tokens=1)) as stream:
            pieces = [piece async for piece in stream]
        assert 64 == len(slow.steps)
        assert [] == told.all
    assert FinishReason.LENGTH is pieces[-1].finish
