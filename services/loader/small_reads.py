"""Small files of artifacts, read for callers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import BinaryIO, Final

from aiofiles.threadpool import wrap

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest, ManifestFile, Role
from services.common.checkpoint.signatures import SIGNATURES_NAME
from services.common.checkpoint.verified_artifact import verify_small
from services.common.errors import InvalidRequest, NotFound
from services.common.ids import ArtifactId
from services.common.stoppable import run_stoppable
from services.loader.artifacts import NOBODY, Artifacts

CHUNK_BYTES: Final = 1 << 20


async def read_small(
    artifacts: Artifacts, artifact_id: ArtifactId, path: str
) -> AsyncGenerator[memoryview, None]:
    """Yields a file's content in chunks of at most 1 MiB, all of it verified before the first.

    The manifest and its signatures are files, too: the id vouches for the one, the others are for the reader to judge.

    Raises:
        NotFound: There is no such artifact, or its manifest names no such file.
        InvalidRequest: The file is the weights.
        CorruptData: The file is missing, no plain file, or not the one that the manifest names.
        HalogenError: As `Artifacts` says.
    """
    async with artifacts.opened(artifact_id) as stored:
        view = memoryview(await _read(artifacts, stored, path))
    for begin in range(0, len(view), CHUNK_BYTES):
        yield view[begin : begin + CHUNK_BYTES]


async def _read(artifacts: Artifacts, stored: StoredArtifact, path: str) -> bytes:
    if path == MANIFEST_NAME:
        return stored.manifest.encode()
    if path == SIGNATURES_NAME and (signatures := await artifacts.signatures(stored)):
        return signatures
    file = _named(stored.manifest, path)
    await artifacts.bring(stored, file, NOBODY)
    return await _read_verified(stored, file)


async def _read_verified(stored: StoredArtifact, file: ManifestFile) -> bytes:
    opened = wrap(await run_stoppable(lambda _stop: stored.open(file), _close))
    try:
        content = await opened.read(file.size_bytes + 1)
    finally:
        await asyncio.shield(opened.close())
    return await asyncio.to_thread(verify_small, content, file)


def _close(opened: BinaryIO) -> None:
    opened.close()


def _named(manifest: Manifest, path: str) -> ManifestFile:
    file = manifest.file(path)
    if file is None:
        names = ", ".join(known.path for known in manifest.small_files)
        raise NotFound(f"the artifact has no such file; it has {names}")
    if file.role is Role.WEIGHTS:
        raise InvalidRequest("weights are not sent; ask for them with PrepareArtifact on the same host")
    return file
