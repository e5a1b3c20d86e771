"""An artifact's representative requests as token ids, made apart from the process that serves."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

from services.common.errors import Unavailable
from services.common.ids import ArtifactId
from services.common.own_python import module_command
from services.common.text.encoding_process import pack, read_answer
from services.common.text.representative_prompts import RepresentativePrompt

_MODULE: Final = "services.common.text.encoding_process"
_TIMEOUT_S: Final = 120.0  # it has a tenth of a core where others want it


class TextFiles(Protocol):
    """Where an artifact's text files come from."""

    async def text_files(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        """Name to content, if it has representative requests; else nothing."""
        ...


async def representative_prompts(
    source: TextFiles, artifact_id: ArtifactId
) -> tuple[RepresentativePrompt, ...]:
    """The prompts that an artifact wants to be warmed up with.

    Raises:
        CorruptData: They cannot be encoded.
        Unavailable: They could not be encoded now.
        HalogenError: As the source says.
    """
    files = await source.text_files(artifact_id)
    return await encode_apart(files) if files else ()


async def encode_apart(files: Mapping[str, bytes]) -> tuple[RepresentativePrompt, ...]:
    """As `encode_requests`, in a process of its own; raises what `representative_prompts` does."""
    async with _encoder() as process:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                said, _ = await process.communicate(pack(files))
            return read_answer(said)
        except (TimeoutError, ValueError):
            raise Unavailable(
                f"the representative requests were not encoded: the process that does it ended with status "
                f"{process.returncode} or took over {_TIMEOUT_S:g} s",
                retry_after_s=1,
            ) from None


@contextlib.asynccontextmanager
async def _encoder() -> AsyncIterator[Process]:
    """The process; one that is still running at the scope's end is killed."""
    process = await asyncio.create_subprocess_exec(
        *module_command(_MODULE), stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    try:
        yield process
    finally:
        await asyncio.shield(_end(process))


async def _end(process: Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
