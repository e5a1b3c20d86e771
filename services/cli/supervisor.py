"""Keeps child processes running: started again with backoff when they die, ended in order, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from services.common.backoff import Backoff
from services.common.ending import REFUSED
from services.common.with_parent import with_parent

FIRST_BACKOFF_S: Final = 0.2
LAST_BACKOFF_S: Final = 5.0
STEADY_S: Final = 30.0  # a process that lived this long starts anew without backoff
START_TRIES: Final = 3  # deaths before the system first stood, after which starting it is given up


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start one process."""

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str]


class Child:
    """One process under supervision.

    Args:
        command: How to start it.
        on_death: Told the line that says what happened, each time it dies unasked.

    Attributes:
        gave_up: Set when it will not start: it has refused its settings, which stay the same, or died too often.
    """

    def __init__(self, command: Command, on_death: Callable[[str], None]) -> None:
        self.name = command.name
        self._command = command
        self._on_death = on_death
        self._process: asyncio.subprocess.Process | None = None
        self._ending = asyncio.Event()
        self.deaths = 0
        self.gave_up = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def keep_running(self) -> None:
        """Runs the process, again and again, until `end`."""
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        while not self._ending.is_set():
            started = time.monotonic()
            status = await self._run_once()
            if self._ending.is_set():
                return
            self.deaths += 1
            if status == REFUSED or self.deaths >= START_TRIES:
                self.gave_up.set()
            if time.monotonic() - started >= STEADY_S:
                backoff.reset()
            wait = backoff.next_s()
            self._on_death(f"{self.name} ended with status {status}; starting it again in {wait:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), wait)

    async def _run_once(self) -> int:
        with self._command.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *with_parent(self._command.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._command.environment,
                start_new_session=True,  # Ctrl-C reaches the launcher only, which ends its children in order
            )
        try:
            return await self._process.wait()
        finally:
            if self._process.returncode is None:
                self._process.kill()

    async def end(self, patience_s: float) -> None:
        """SIGTERM, and SIGKILL after `patience_s` seconds; returns when it is gone."""
        self._ending.set()
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), patience_s)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    def describe_failure(self) -> str:
        """One line: what it said last, and where the rest stands."""
        lines = self._command.log.read_text(errors="replace").strip().splitlines() or ["it says nothing"]
        return f"{self.name} does not start: {lines[-1][:500]} (log: {self._command.log})"
