"""Conversions on behalf of callers: a process of their own each, one at a time, the result put into the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

from services.common import errors
from services.common.checkpoint.artifact_store import INCOMING_PREFIX, ArtifactStore, read_manifest
from services.common.checkpoint.owned_directory import owned_directory
from services.common.errors import HalogenError, InternalError, InvalidRequest, Overloaded, PreconditionFailed
from services.common.ids import ArtifactId
from services.common.own_python import module_command
from services.loader.flight import Done

_PATIENCE_S: Final = 5.0  # what a converter that was called off gets to clean up


class Conversions:
    """Converts directories below one root.

    Args:
        store: Takes the artifacts; None if it cannot be written.
        root: Sources lie below it; None: nothing is converted.
    """

    def __init__(self, store: ArtifactStore | None, root: Path | None) -> None:
        self._store = store
        self._root = root
        self._busy = asyncio.Lock()

    async def convert(self, source: str) -> AsyncGenerator[Done | ArtifactId, None]:
        """Yields progress, then the id of the artifact, which is in the store by then.

        Args:
            source: A directory relative to the root.

        Raises:
            PreconditionFailed: This loader has no root.
            InvalidRequest: `source` leads out of the root.
            Overloaded: Another conversion is running.
            HalogenError: As the converter says.
        """
        directory, store = self._locate(source), self._writable()
        if self._busy.locked():
            raise Overloaded("another conversion is running", reason="CONVERTING", retry_after_s=10.0)
        async with self._busy:
            store.root.mkdir(parents=True, exist_ok=True)
            with owned_directory(store.root, INCOMING_PREFIX) as scratch:
                result = scratch / "artifact"
                async with _converter(directory, result) as process:
                    async for done in _progress(process):
                        yield done
                yield await asyncio.to_thread(store.adopt, result, read_manifest(result))

    def _locate(self, source: str) -> Path:
        if self._root is None:
            raise PreconditionFailed(
                "this loader converts nothing; start it with --convert-root DIR", reason="NO_CONVERT_ROOT"
            )
        root = self._root.resolve()
        directory = (root / source).resolve()
        if not source or not directory.is_relative_to(root):
            raise InvalidRequest("the source is not a directory below the loader's convert root")
        return directory

    def _writable(self) -> ArtifactStore:
        if self._store is None:
            raise PreconditionFailed(
                "this loader's store is only read; give --store a directory", reason="STORE_READ_ONLY"
            )
        return self._store


@contextlib.asynccontextmanager
async def _converter(source: Path, destination: Path) -> AsyncIterator[Process]:
    """A running converter; one that is still running at the scope's end is made to end."""
    process = await asyncio.create_subprocess_exec(
        *module_command("services.loader.convert"),
        *(str(source), str(destination)),
        *("--progress", "json", "--parent", str(os.getpid())),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
    )
    try:
        yield process
    finally:
        await asyncio.shield(_end(process))


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _PATIENCE_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _progress(process: Process) -> AsyncGenerator[Done, None]:
    """What the converter says as it goes; raises what it failed with."""
    assert process.stdout is not None
    finished = False
    async for line in process.stdout:
        said = json.loads(line)
        if "error" in said:
            raise _failure(said["error"])
        if "total_bytes" in said:
            yield Done(said["done_bytes"], said["total_bytes"])
        finished = "artifact_id" in said
    if not finished:
        raise InternalError(f"the converter ended with status {await process.wait()} and said nothing")


def _failure(said: dict[str, Any]) -> HalogenError:
    """The converter's error as it was raised there; one that is none of ours is a fault of the host."""
    kind = getattr(errors, said["kind"], InternalError)
    return (
        kind(said["message"], reason=said["reason"]) if issubclass(kind, HalogenError) else InternalError("")
    )
