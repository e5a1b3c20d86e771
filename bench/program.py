"""A Python program in a fresh process, spoken with by lines: it says `ready`, then answers a line with one of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

REPOSITORY: Final = Path(__file__).parents[1]
PATIENCE_S: Final = 30.0
_LAST_LINES: Final = 5
_numbers: Final = itertools.count(1)


class ProgramFailedError(RuntimeError):
    """It ended without an answer; says what it complained of."""


class Program:
    """A running program.

    Args:
        process: Its process.
        log: Where its standard error goes.
    """

    def __init__(self, process: Process, log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._log = log

    async def heard(self) -> str:
        """The next line that it says."""
        assert self._process.stdout
        line = await self._process.stdout.readline()
        if not line:
            await self._fail()
        return line.decode().strip()

    async def ask(self, *words: str) -> dict[str, Any]:
        """Says a line, and returns the answer."""
        assert self._process.stdin
        self._process.stdin.write((" ".join(words) + "\n").encode())
        answer: dict[str, Any] = json.loads(await self.heard())
        return answer

    async def _fail(self) -> NoReturn:
        await self._process.wait()
        last = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        raise ProgramFailedError(f"{self._log.stem} ended with status {self._process.returncode}: {last}")


@contextlib.asynccontextmanager
async def program(
    module: str,
    *arguments: str,
    logs: Path,
    environment: Mapping[str, str] | None = None,
    python: str | Path = sys.executable,
) -> AsyncIterator[Program]:
    """Runs ``python -m module`` for the scope, which begins when it has said `ready`.

    Args:
        logs: Directory for its standard error.
        environment: What it gets beside ours.
        python: Another environment's, for a module that needs nothing of ours.
    """
    log = logs / f"{module}-{next(_numbers)}.log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            python, "-m", module, *arguments,
            stdin=PIPE, stdout=PIPE, stderr=stderr, cwd=REPOSITORY, env={**os.environ, **(environment or {})},
        )  # fmt: skip
    running = Program(process, log)
    try:
        assert await running.heard() == "ready"
        yield running
    finally:
        await asyncio.shield(_end(process))


async def _end(process: Process) -> None:
    """Asks it to end, and makes it."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), PATIENCE_S)
    except TimeoutError:
        process.kill()
        await process.wait()
