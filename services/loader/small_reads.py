"""Small files of artifacts, read for callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import aiofiles

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.manifest import Role
from services.common.checkpoint.verified_artifact import verify_small
from services.common.errors import CorruptData, InvalidRequest, NotFound
from services.common.ids import ArtifactId

CHUNK_BYTES: Final = 1 << 20


async def read_small(
    store: ArtifactStore, artifact_id: ArtifactId, path: str
) -> AsyncGenerator[memoryview, None]:
    """Yields a file's content in chunks of at most 1 MiB, all of it verified before the first.

    Raises:
        NotFound: There is no such artifact, or its manifest names no such file.
        InvalidRequest: The file is the weights.
        CorruptData: The file is missing, or not the one that the manifest names.
    """
    stored = await asyncio.to_thread(store.open, artifact_id)
    file = stored.manifest.file(path)
    if file is None:
        names = ", ".join(known.path for known in stored.manifest.small_files)
        raise NotFound(f"the artifact has no such file; it has {names}")
    if file.role is Role.WEIGHTS:
        raise InvalidRequest("weights are not sent; ask for them with PrepareArtifact on the same host")
    try:
        async with aiofiles.open(stored.path(file), "rb") as opened:
            content = await opened.read(file.size_bytes + 1)
    except FileNotFoundError:
        raise CorruptData(f"{file.path} is missing; fetch or convert the artifact again") from None
    await asyncio.to_thread(verify_small, content, file)
    view = memoryview(content)
    for begin in range(0, len(view), CHUNK_BYTES):
        yield view[begin : begin + CHUNK_BYTES]
