"""`halogen watch` where nobody answers: it ends, and says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
from collections.abc import AsyncGenerator

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli import watch_command
from services.cli.operator_name import operator_name
from services.common.errors import Unavailable


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_command, "_ANSWER_S", 0.2)


async def test_a_gateway_that_is_not_there_is_not_waited_for_without_end() -> None:
    """Fault injection: turns red (by its time limit) when `follow` does not connect first."""
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match=r"nobody answers at 127\.0\.0\.1:1 within"):
            await watch_command.follow("127.0.0.1:1", "m", 1, as_json=False)


async def test_a_gateway_that_says_nothing_is_not_waited_for_without_end() -> None:
    """It may be cut off from etcd. Fault injection: turns red (by its time limit) when `_first` has no time limit."""

    async def silent() -> AsyncGenerator[pb.PublishOutcome, None]:
        await asyncio.Event().wait()
        yield pb.PublishOutcome()

    async with asyncio.timeout(60), contextlib.aclosing(silent()) as outcomes:
        with pytest.raises(Unavailable, match="how the publish stands"):
            await watch_command._first(outcomes)


def test_a_user_without_a_name_is_told_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers. Fault injection: turns red when `operator_name` lets the KeyError pass."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000830000")

    monkeypatch.setattr(getpass, "getuser", nameless)
    assert f"uid-{os.getuid()}" == operator_name()
