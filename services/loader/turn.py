"""Whose turn it is to give or to take a name: one process at a time, whatever becomes of it.

A turn is a lock on a named pipe. The lock says who has it. The pipe tells those who wait: only the holder keeps it
open for writing, so it ends when the holder lets go or is killed, and an event loop can watch for that end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import structlog

from services.common.file_lock import LockKind, has_name, try_lock

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def turn(path: Path) -> AsyncIterator[None]:
    """Holds the turn for the scope, having waited for it.

    Args:
        path: Of the pipe, which is there only while somebody has the turn or waits for it.

    Raises:
        OSError: The directory is gone, or its file system has no locks.
    """
    pipe = await _take(path)
    try:
        yield
    finally:
        _end(path, pipe)


@contextlib.contextmanager
def turn_if_free(path: Path) -> Iterator[bool]:
    """The same without waiting; gives whether it is held."""
    pipe, mine = _try(path)
    try:
        yield mine
    finally:
        if mine:
            _end(path, pipe)
        else:
            os.close(pipe)


async def _take(path: Path) -> int:
    while True:
        pipe, mine = _try(path)
        if mine:
            return pipe
        log.info("turn_awaited", pipe=path.name)
        await _end_of_holder(pipe)


def _try(path: Path) -> tuple[int, bool]:
    """The pipe, open for reading and writing, and whether the turn is ours by it."""
    while True:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        try:
            pipe = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a turn ended just now
        if not _locked(pipe):
            return pipe, False
        if has_name(pipe, path):
            return pipe, True
        os.close(pipe)


def _locked(pipe: int) -> bool:
    try:
        return try_lock(pipe, LockKind.ALONE)
    except OSError:
        os.close(pipe)
        raise


def _end(path: Path, pipe: int) -> None:
    """Takes the pipe's name first: whoever comes now begins with a new one."""
    path.unlink(missing_ok=True)
    os.close(pipe)


async def _end_of_holder(pipe: int) -> None:
    """Returns once nobody else has the pipe open for writing; closes it.

    The reading end is opened before the writing end is closed, so that no end goes unseen. The kernel drops a lock
    before it ends the pipe: whoever is woken finds the turn free, or taken by the next one.
    """
    try:
        end = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(pipe)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(end, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(end)
        os.close(end)
