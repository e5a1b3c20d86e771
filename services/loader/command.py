"""A conversion run as a command: arguments, progress, the result line, the exit status.

Progress is a bar for people, JSON lines for programs, or nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from services.common.checkpoint.manifest import Manifest
from services.common.ending import ending_in_order
from services.common.errors import HalogenError
from services.common.with_parent import end_with_parent

_JSON_STEPS: Final = 256  # at most this many progress lines

Work = Callable[[argparse.Namespace, "Reporter"], Manifest | None]


def paths_parser(description: str | None, names: tuple[str, str]) -> argparse.ArgumentParser:
    """A parser of two paths, `source` and `destination`, of how progress is shown, and of with whom it ends.

    Args:
        description: What ``--help`` says.
        names: What the two paths are called.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar=names[0])
    parser.add_argument("destination", type=Path, metavar=names[1])
    parser.add_argument("--progress", choices=REPORTERS, default="bar", help="how progress is shown")
    parser.add_argument(
        "--parent", type=int, metavar="PID", help="what started this process, which ends when that one does"
    )
    return parser


def run_command(parser: argparse.ArgumentParser, argv: Sequence[str], work: Work) -> int:
    """Parses the arguments, does the work between the two paths and tells of it; returns the exit status.

    A signal that asks to end closes what is open and raises SystemExit.

    Args:
        parser: Made by `paths_parser`, perhaps with options of its own.
        argv: The arguments after the program's name.
        work: Takes the parsed arguments and whom to tell.
    """
    options = parser.parse_args(argv)
    if options.parent:
        end_with_parent(options.parent)
    with ending_in_order(), open_reporter(options.progress, options.source.name) as reporter:
        try:
            manifest = work(options, reporter)
        except (HalogenError, OSError) as failure:
            reporter.fail(failure)
            return 1
    reporter.finish(options.destination, manifest)
    return 0


class Reporter(Protocol):
    """Where a command's progress and end are told."""

    def progress(self, done_bytes: int, total_bytes: int) -> None: ...

    def note(self, line: str) -> None: ...

    def finish(self, destination: Path, manifest: Manifest | None) -> None: ...

    def fail(self, failure: HalogenError | OSError) -> None: ...


class PlainReporter:
    """The artifact's id, or else the directory, on standard output; errors on standard error."""

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        """Says nothing."""

    def note(self, line: str) -> None:
        print(line, file=sys.stderr)  # noqa: T201  # a command's own output

    def finish(self, destination: Path, manifest: Manifest | None) -> None:
        _write(manifest.id if manifest else str(destination))

    def fail(self, failure: HalogenError | OSError) -> None:
        print(f"error: {_said(failure)}", file=sys.stderr)  # noqa: T201  # a command's own output


class BarReporter(PlainReporter):
    """A bar on standard error as well."""

    def __init__(self, bar: Progress, title: str) -> None:
        self._bar = bar
        self._task = bar.add_task(title, total=None)

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)

    def note(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


class JsonReporter:
    """One JSON object a line on standard output."""

    def __init__(self) -> None:
        self._told = -1

    def progress(self, done_bytes: int, total_bytes: int) -> None:
        step = done_bytes * _JSON_STEPS // max(total_bytes, 1)
        if step > self._told:
            self._told = step
            _write_json({"done_bytes": done_bytes, "total_bytes": total_bytes})

    def note(self, line: str) -> None:
        _write_json({"note": line})

    def finish(self, destination: Path, manifest: Manifest | None) -> None:
        _write_json({"artifact_id": manifest.id} if manifest else {"directory": str(destination)})

    def fail(self, failure: HalogenError | OSError) -> None:
        kind = type(failure).__name__
        reason = failure.reason if isinstance(failure, HalogenError) else kind
        _write_json({"error": {"kind": kind, "message": _said(failure), "reason": reason}})


def _said(failure: HalogenError | OSError) -> str:
    """One line for people."""
    if isinstance(failure, HalogenError):
        return str(failure)
    if failure.filename is None:  # of a file that was open already
        return f"{(failure.strerror or str(failure)).lower()} while OUT was written; give another OUT, or make room"
    what = (failure.strerror or "cannot be used").lower()
    return f"{failure.filename}: {what}; make it one that you may read, and OUT one that you may write, or give another"


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
