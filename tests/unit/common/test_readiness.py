"""One object says whether a process is ready, and tells whoever listens."""

from __future__ import annotations

import contextlib

from services.common.readiness import Readiness


def test_it_is_ready_when_nothing_is_missing() -> None:
    """First it is starting; then what is missing is said in words, and nothing missing is ready."""
    readiness = Readiness()
    assert (False, False, "it is starting") == (readiness.started, readiness.ready, readiness.missing)
    readiness.start()
    readiness.set("no model is served", {"m@stable": False})
    assert (True, False, "no model is served") == (readiness.started, readiness.ready, readiness.missing)
    readiness.set("", {"m@stable": True})
    assert (True, {"m@stable": True}) == (readiness.ready, dict(readiness.names))


def test_what_is_ending_never_becomes_ready_again() -> None:
    """A late report of an ACTIVE generation does not call clients back to a process that drains.

    Fault injection: turns red when `missing` does not look at `_ending`.
    """
    readiness = Readiness()
    readiness.start()
    readiness.end()
    readiness.set("", {"m@stable": True})
    assert (True, False, "it is stopping") == (readiness.started, readiness.ready, readiness.missing)
    assert {"m@stable": False} == readiness.names


async def test_listeners_hear_the_first_state_and_every_change() -> None:
    """What is set anew to the same is no change."""
    readiness = Readiness()
    async with contextlib.aclosing(readiness.changes()) as changes:
        await anext(changes)
        readiness.set("")
        await anext(changes)
        readiness.set("")
        readiness.end()
        await anext(changes)
        assert not readiness.ready
