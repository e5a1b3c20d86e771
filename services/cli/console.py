"""What the command says to people: answers on standard output, everything else on standard error."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from services.common.control_characters import escaped


class PlainConsole(Console):
    """Shows words as they are, whoever wrote them: nothing in them is markup, an emoji, or a command to the terminal."""

    def __init__(self, **chosen: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **chosen)

    def render_str(self, text: str, **chosen: Any) -> Text:
        """Of control characters only those work that end and indent lines."""
        return super().render_str(escaped(text, keep="\n\r\t"), **chosen)


out = PlainConsole()
err = PlainConsole(stderr=True)


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
