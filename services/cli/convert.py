"""Conversions, run by the loader's own converter in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from services.cli.console import CommandError
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions


def gguf_to_hugging_face(source: Path, target: Path, progress: Progress) -> None:
    """A GGUF file to a Hugging Face directory; raises CommandError with the converter's own line."""
    _run("services.loader.gguf", source, target, progress, "unpack GGUF")


def to_artifact(source: Path, target: Path, progress: Progress, options: ConversionOptions = DEFAULTS) -> str:
    """A checkpoint to an artifact directory; returns the artifact's id, and says what there is to know."""
    return _run(
        "services.loader.convert", source, target, progress, "convert to v2", arguments=options.arguments()
    )


def compare(source: Path, artifact: Path, progress: Progress) -> tuple[str, ...]:
    """An artifact with its source; returns what there is to say, or raises CommandError with what differs."""
    notes: list[str] = []
    _run("services.loader.verify", source, artifact, progress, "compare", note=notes.append)
    return tuple(notes)


def _run(
    module: str,
    source: Path,
    target: Path,
    progress: Progress,
    title: str,
    *,
    arguments: Sequence[str] = (),
    note: Callable[[str], object] | None = None,
) -> str:
    command = [sys.executable, "-m", module, str(source), str(target), "--progress", "json", *arguments]
    bar = progress.add_task(title, total=None)
    last: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            last = json.loads(line)
            if "total_bytes" in last:
                progress.update(bar, completed=last["done_bytes"], total=last["total_bytes"])
            if "note" in last:
                (note or _noter(progress))(last["note"])
        complaint = process.stderr.read() if process.stderr else ""
    if "error" in last:
        raise CommandError(str(last["error"]["message"]))
    if process.returncode != 0:
        raise CommandError(_last_line(complaint.splitlines()))
    return str(last.get("artifact_id", ""))


def _noter(progress: Progress) -> Callable[[str], object]:
    return lambda line: progress.console.print(line, markup=False)


def _last_line(lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "the converter failed and says nothing")
