"""How a command that runs by itself tells of its progress: a bar for people, JSON lines for programs, or nothing."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from services.common.errors import HalogenError

_JSON_STEP: Final = 256  # at most this many progress lines


class Reporter(Protocol):
    """Where a command's progress and end are told."""

    def progress(self, done: int, total: int) -> None: ...

    def finish(self, artifact_id: str) -> None: ...

    def fail(self, failure: HalogenError | OSError) -> int:
        """Tells of the failure; returns the exit status."""
        ...


class PlainReporter:
    """The id on standard output, errors on standard error."""

    def progress(self, done: int, total: int) -> None:
        """Says nothing."""

    def finish(self, artifact_id: str) -> None:
        _write(artifact_id)

    def fail(self, failure: HalogenError | OSError) -> int:
        print(f"error: {failure}", file=sys.stderr)  # noqa: T201  # a command's own output
        return 1


class BarReporter(PlainReporter):
    """A bar on standard error as well."""

    def __init__(self, bar: Progress, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=None)

    def progress(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)


class JsonReporter:
    """One JSON object a line."""

    def __init__(self) -> None:
        self._told = -1

    def progress(self, done: int, total: int) -> None:
        step = done * _JSON_STEP // max(total, 1)
        if step > self._told:
            self._told = step
            _write_json({"done_bytes": done, "total_bytes": total})

    def finish(self, artifact_id: str) -> None:
        _write_json({"artifact_id": artifact_id})

    def fail(self, failure: HalogenError | OSError) -> int:
        reason = failure.reason if isinstance(failure, HalogenError) else type(failure).__name__
        _write_json({"error": {"kind": type(failure).__name__, "message": str(failure), "reason": reason}})
        return 1


REPORTERS: Final = ("json", "bar", "none")


@contextlib.contextmanager
def open_reporter(kind: str, title: str) -> Iterator[Reporter]:
    """The reporter of one of the kinds in REPORTERS."""
    if kind == "json":
        yield JsonReporter()
    elif kind == "none":
        yield PlainReporter()
    else:
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        with Progress(*columns, console=Console(stderr=True)) as bar:
            yield BarReporter(bar, title)


def _write(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # a command's own output


def _write_json(value: dict[str, Any]) -> None:
    _write(json.dumps(value))
