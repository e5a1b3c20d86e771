"""What the command says to people: answers on standard output, everything else on standard error."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


class CommandError(Exception):
    """Ends the command with status 1 and this one line, which says what to do."""


def byte_progress() -> Progress:
    """A bar of bytes with speed and time, on standard error."""
    return Progress(
        TextColumn("{task.description:<22}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=err,
    )
