"""The model that a loader is started with: brought into its store, and into memory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import structlog

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.load_format import LoadFormat, check_format
from services.common.ids import ArtifactId
from services.loader.conversions import Conversions
from services.loader.preparations import Preparations

log = structlog.get_logger()


async def bring_in(
    path: Path, load_format: LoadFormat, store: ArtifactStore, preparations: Preparations
) -> None:
    """Makes the model ready for the first engine that asks: converted if need be, in the store, in memory.

    It is not published by that: `halogen publish` names it for a cohort.

    Raises:
        HalogenError: It cannot be converted, is damaged, or there is no room for it.
    """
    if check_format(path, load_format) is LoadFormat.V2:
        artifact_id = await asyncio.to_thread(store.put, path)
    else:
        artifact_id = await _convert(path, store)
    async with contextlib.aclosing(preparations.prepare(artifact_id)) as steps:
        async for _ in steps:
            pass
    log.info("model_path_ready", artifact_id=artifact_id)


async def _convert(path: Path, store: ArtifactStore) -> ArtifactId:
    async with contextlib.aclosing(Conversions(store, path.parent).convert(path.name)) as steps:
        async for step in steps:
            last = step
    assert isinstance(last, str)  # an artifact's id ends a conversion
    return ArtifactId(last)
