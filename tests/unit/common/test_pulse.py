"""News of several, as one."""

from __future__ import annotations

import contextlib

import pytest

from services.common.pulse import Pulse, merged


async def test_whatever_beats_is_heard() -> None:
    """Each of them, also what had beaten before."""
    first, second = Pulse(), Pulse()
    first.beat()
    async with contextlib.aclosing(merged(first.beats(), second.beats())) as beats:
        await anext(beats)
        second.beat()
        await anext(beats)
        first.beat()
        await anext(beats)


async def test_listening_ends_with_the_listener() -> None:
    """Nothing that was listened to is left open."""
    beats = Pulse().beats()
    pulse = Pulse()
    pulse.beat()
    async with contextlib.aclosing(merged(pulse.beats(), beats)) as both:
        await anext(both)
    with pytest.raises(StopAsyncIteration):
        await anext(beats)
