"""A stall is noticed once, and only while something is under way."""

from __future__ import annotations

import asyncio

import pytest

from services.common.stall import StallTimer


class Stalls:
    """Counts, and can be waited for."""

    def __init__(self) -> None:
        self.seen = 0
        self.news = asyncio.Event()

    def __call__(self) -> None:
        self.seen += 1
        self.news.set()


async def test_no_progress_is_noticed() -> None:
    """Once; and once more after it went on and stalled again."""
    stalls = Stalls()
    timer = StallTimer(0.02, stalls)
    for expected in (1, 2):
        timer.progress()
        await asyncio.wait_for(stalls.news.wait(), 10)
        stalls.news.clear()
        assert expected == stalls.seen
    timer.close()


async def test_progress_and_rest_are_no_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves is left alone until it stops, and nothing under way cannot stall; by a clock that the test moves.

    Fault injection: turns red when StallTimer._look calls back without a look at the clock.
    """
    stalls, now_s = Stalls(), [0.0]
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0])
        moving, resting = StallTimer(1.0, stalls), StallTimer(1.0, stalls)
        resting.progress()
        resting.rest()
        for _ in range(20):
            moving.progress()
            await passed(now_s, 0.5)
        assert 0 == stalls.seen
        await passed(now_s, 1.0)
        assert 1 == stalls.seen
        for timer in (moving, resting):
            timer.close()


async def passed(now_s: list[float], seconds: float) -> None:
    """Time goes by, and the loop has called what was due."""
    now_s[0] += seconds
    for _ in range(3):
        await asyncio.sleep(0)
