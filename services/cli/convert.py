"""Conversions, run by the loader's own converter in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rich.progress import Progress

from services.cli.console import CommandError
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions
from services.common.ending import ending_in_order
from services.common.own_python import module_command

_PATIENCE_S: Final = (
    30.0  # what a converter that is called off gets to clean up: the disk may be busy with its last sync
)


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
    command = [*module_command(module), str(source), str(target), *arguments]
    command += ["--progress", "json", "--parent", str(os.getpid())]
    bar = progress.add_task(title, total=None)
    last: dict[str, Any] = {}
    with _converter(command) as process:
        for line in process.stdout or ():
            last = json.loads(line)
            if "total_bytes" in last:
                progress.update(bar, completed=last["done_bytes"], total=last["total_bytes"])
            if "note" in last:
                (note or _noter(progress))(last["note"])
        complaint = process.stderr.read() if process.stderr else ""
        status = process.wait()
    if "error" in last:
        raise CommandError(str(last["error"]["message"]))
    if status != 0:
        raise CommandError(_last_line(complaint.splitlines()))
    return str(last.get("artifact_id", ""))


@contextlib.contextmanager
def _converter(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A running converter; what still runs at the scope's end, or when this process is asked to end, is called off."""
    pipe = subprocess.PIPE
    with ending_in_order(), subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            _call_off(process)


def _call_off(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _noter(progress: Progress) -> Callable[[str], object]:
    return progress.console.print


def _last_line(lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if line.strip()), "the converter failed and says nothing")
