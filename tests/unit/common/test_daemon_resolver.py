"""Host names for HTTP clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from services.common.daemon_resolver import DaemonResolver


async def test_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system knows it; what it does not know, or is no name, is an error of whoever asked."""
    [found] = await DaemonResolver().resolve("localhost", 81)
    assert ("localhost", "127.0.0.1", 81) == (found["hostname"], found["host"], found["port"])
    for failure in (socket.gaierror("not known"), UnicodeError("no name")):
        monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=failure))
        with pytest.raises(type(failure)):
            await DaemonResolver().resolve("nobody")


async def test_a_look_up_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up at once, leaves no thread that is waited for, and what it says later is heard by nobody.

    Fault injection: turns red when `resolve` starts a thread that is no daemon, or the loop's own executor is asked.
    """
    asked, silent = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        loop.call_soon_threadsafe(asked.set)
        silent.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    waiting = asyncio.ensure_future(DaemonResolver().resolve("host"))
    try:
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        [thread] = [each for each in threading.enumerate() if each.name == "look-up"]
        assert thread.daemon
    finally:
        silent.set()
    await asyncio.to_thread(thread.join)
