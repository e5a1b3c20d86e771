"""Turns: one at a time, in one process or several, and nobody waits for the dead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from services.loader.turn import turn, turn_if_free
from tests.unit.loader.disk import open_descriptors

HOLDER = """
import asyncio, pathlib, sys
from services.loader.turn import turn

async def hold():
    async with turn(pathlib.Path(sys.argv[1])):
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    return tmp_path / ".a.turn"


async def test_one_at_a_time_has_the_turn_and_everybody_gets_it(pipe: Path) -> None:
    """Whatever the order in which they come, stay and leave; in the end neither pipe nor descriptor is left."""
    before, holders, most, served = open_descriptors(), 0, 0, 0

    async def take(seed: int) -> None:
        nonlocal holders, most, served
        dice = random.Random(seed)
        for _ in range(20):
            async with turn(pipe):
                holders += 1
                most = max(most, holders)
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(0)
                holders -= 1
                served += 1

    async with asyncio.TaskGroup() as group:
        for seed in range(8):
            group.create_task(take(seed))
    assert (1, 160) == (most, served)
    assert not pipe.exists()
    assert set() == open_descriptors() - before


async def test_a_turn_that_ends_between_opening_and_locking_is_not_taken(
    pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipe has no name any more: a lock on it would keep nobody out.

    Fault injection: _try in services/loader/turn.py does not look whether the pipe still has its name.
    """
    original, opened = os.open, []

    def open_as_it_ends(path: Path, flags: int) -> int:
        opened.append(original(path, flags))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    monkeypatch.setattr(os, "open", open_as_it_ends)
    async with turn(pipe):
        with turn_if_free(pipe) as mine:
            assert not mine


async def test_who_waits_can_be_called_off(pipe: Path) -> None:
    """At once, and without harm to the holder or to the next."""
    before = open_descriptors()
    async with turn(pipe):
        waiting = asyncio.create_task(contextlib.AsyncExitStack().enter_async_context(turn(pipe)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with turn_if_free(pipe) as mine:
            assert not mine
    with turn_if_free(pipe) as mine:
        assert mine
    assert set() == open_descriptors() - before


async def test_a_killed_holder_frees_the_turn(pipe: Path) -> None:
    """Who waits for it is woken by the kernel."""
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(pipe), stdout=PIPE)
    assert holder.stdout
    assert b"held\n" == await holder.stdout.readline()
    entered = asyncio.Event()

    async def take() -> None:
        async with turn(pipe):
            entered.set()

    waiting = asyncio.create_task(take())
    await asyncio.sleep(0)
    assert not entered.is_set()
    holder.kill()
    await asyncio.wait_for(waiting, 60)
    await holder.wait()
    assert not pipe.exists()


async def test_a_pipe_that_a_killed_holder_left_is_no_obstacle(pipe: Path) -> None:
    """It is there, and nobody has it."""
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(pipe), stdout=PIPE)
    assert holder.stdout
    await holder.stdout.readline()
    holder.kill()
    await holder.wait()
    assert pipe.is_fifo()
    async with turn(pipe):
        pass
    assert not pipe.exists()


async def test_without_its_directory_there_is_no_turn(tmp_path: Path) -> None:
    """An error, not a wait."""
    with pytest.raises(FileNotFoundError):
        async with turn(tmp_path / "absent" / ".a.turn"):
            pass
