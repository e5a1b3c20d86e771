"""What a launcher raises when things end at about the same time."""

from __future__ import annotations

import asyncio

import pytest

from services.cli.console import CommandError
from services.cli.up import unless
from services.common.errors import Unavailable


async def test_why_the_system_ended_is_told_rather_than_that_it_did() -> None:
    """The gateway's last word comes first, the supervisor's just after it.

    Fault injection: `unless` raises what is done first.
    """
    ended = asyncio.Event()

    async def failure() -> None:
        await ended.wait()
        await asyncio.sleep(0)
        raise CommandError("the engine does not start")

    async def work() -> None:
        ended.set()
        raise Unavailable("this process is stopping")

    with pytest.raises(CommandError, match="the engine does not start"):
        await unless(asyncio.Event(), failure(), work())


async def test_work_that_fails_by_itself_is_told() -> None:
    """Nothing else went wrong; the failure never comes."""

    async def work() -> None:
        raise Unavailable("no room")

    with pytest.raises(Unavailable, match="no room"):
        await unless(asyncio.Event(), asyncio.Event().wait(), work())  # type: ignore[arg-type]
