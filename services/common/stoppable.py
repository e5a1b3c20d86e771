"""Blocking work in a thread that can be called off but never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


async def run_stoppable(work: Callable[[threading.Event], R], undo: Callable[[R], None]) -> R:
    """Runs `work` in a thread; a cancelled caller sets its event and waits until it has returned.

    Args:
        work: Gets the event, and may look at it.
        undo: Gives back what the work returned, if by then nobody wants it.
    """
    stop = threading.Event()
    context = contextvars.copy_context()  # what logs and spans know of the caller
    running = asyncio.get_running_loop().run_in_executor(None, context.run, work, stop)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):  # once is enough
                await asyncio.wait([running])
        if running.exception() is None:
            undo(running.result())
        raise


async def in_thread(work: Callable[[], R]) -> R:
    """Runs `work` in a thread; a cancelled caller waits until it has returned, so that what it uses can be closed."""
    return await run_stoppable(lambda _stop: work(), lambda _result: None)
