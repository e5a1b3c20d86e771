"""A stall is noticed once, and only while something is under way."""

from __future__ import annotations

import asyncio

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


async def test_progress_and_rest_are_no_stalls() -> None:
    """What moves is left alone, and nothing under way cannot stall."""
    stalls = Stalls()
    moving, resting, silent = StallTimer(0.05, stalls), StallTimer(0.05, stalls), Stalls()
    clock = StallTimer(0.3, silent)
    clock.progress()
    resting.progress()
    resting.rest()
    while not silent.seen:
        moving.progress()
        await asyncio.sleep(0.005)
    assert 0 == stalls.seen
    for timer in (moving, resting, clock):
        timer.close()
