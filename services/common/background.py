"""Work that runs beside a scope and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs `work` while the scope lasts and cancels it at the end, waiting for its cleanup.

    A failure of `work` cancels the body and leaves the scope in its place: a background task cannot die unseen.
    What the body raises leaves the scope as it is, not wrapped in a group.
    """
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(work)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as failures:
        if len(failures.exceptions) > 1:
            raise
        alone = failures.exceptions[0]
    else:
        return
    raise alone
