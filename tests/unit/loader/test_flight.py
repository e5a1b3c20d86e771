"""How those who wait for a piece of work hear of it."""

from __future__ import annotations

import asyncio

import pytest

from services.loader.flight import Done, Flight

STEPS = 1000


async def test_progress_is_told_now_and_then_and_the_end_at_once() -> None:
    """A thousand small steps are told in a few words, the last of which is not late.

    Fault injection: turns red when `follow` yields after every change.
    """
    flight = Flight[str]()
    flight.expect(STEPS)
    told: list[Done] = []

    async def listen() -> None:
        told.extend([done async for done in flight.follow()])

    async with asyncio.TaskGroup() as group:
        group.create_task(listen())
        for _ in range(STEPS):
            await asyncio.sleep(0)
            flight.advance(1)
        flight.finish("made")
    assert Done(0, STEPS) == told[0]
    assert len(told) < STEPS / 2
    assert told == sorted(told)
    assert "made" == flight.result()


async def test_a_failure_reaches_everybody() -> None:
    """Two who wait both get the reason, and so does one who comes later."""
    flight = Flight[str]()

    async def wait() -> str:
        async for _ in flight.follow():
            pass
        return flight.result()

    waiting = [asyncio.create_task(wait()) for _ in range(2)]
    await asyncio.sleep(0)
    flight.fail(ValueError("broken"))
    outcomes = await asyncio.gather(*waiting, wait(), return_exceptions=True)
    assert ["broken"] * 3 == [str(outcome) for outcome in outcomes]
    assert 0 == flight.follower_count
    with pytest.raises(ValueError, match="broken"):
        flight.result()


@pytest.mark.parametrize(("goes_on", "calls"), [(False, 1), (True, 0)])
async def test_the_last_to_leave_calls_the_work_off(goes_on: bool, calls: int) -> None:
    """Once, however often somebody comes and leaves after that; never where it goes on without anybody.

    Fault injection: turns red when `_call_off_if_deserted` does not look at `call_off` or at `is_called_off`.
    """
    called: list[str] = []
    flight = Flight[str]()
    flight.call_off = None if goes_on else lambda: called.append("off")
    first, second = flight.follow(), flight.follow()
    await anext(first)
    await anext(second)
    await first.aclose()
    assert [] == called
    await second.aclose()
    third = flight.follow()
    await anext(third)
    await third.aclose()
    assert calls == len(called)
    assert flight.is_called_off is not goes_on
