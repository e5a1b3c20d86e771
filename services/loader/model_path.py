"""The model that a loader is started with: brought into its store, and into memory as the engines here want it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import structlog

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.checkpoint.load_format import LoadFormat, check_format
from services.common.errors import HalogenError
from services.common.ids import ArtifactId
from services.common.registry.records import EngineRecord
from services.common.registry.view import View
from services.loader.conversions import Conversions
from services.loader.preparations import Preparations
from services.loader.wanted import Wanted

log = structlog.get_logger()


async def bring_in(
    path: Path,
    load_format: LoadFormat,
    store: ArtifactStore,
    preparations: Preparations,
    wanted: Callable[[], Awaitable[Wanted]],
) -> None:
    """Makes the model ready for engines: converted if need be, in the store, verified, and then in memory.

    Only what an engine here will map is brought there, which is not known before the first one has said it. The model
    is not published by that: `halogen publish` names it for a cohort.

    Args:
        path: Where it lies.
        load_format: What it must be.
        store: Where it goes.
        preparations: Verifies it, and brings it into memory.
        wanted: Waits for the first engine here, and tells how it wants weights to lie.

    Raises:
        HalogenError: It cannot be converted, or is damaged.
    """
    if check_format(path, load_format) is LoadFormat.V2:
        artifact_id = await asyncio.to_thread(store.put, path)
    else:
        artifact_id = await _convert(path, store)
    await _to_its_end(preparations.check(artifact_id))
    log.info("model_path_ready", artifact_id=artifact_id)
    with contextlib.suppress(
        HalogenError
    ):  # logged where it happened; whoever asks for the model hears of it, too
        await _to_its_end(preparations.prepare(artifact_id, await wanted()))


async def wanted_by_first(engines: View[EngineRecord], boot_id: str) -> Wanted:
    """How the first engine wants weights to lie that there is on the host that booted as `boot_id`; waits for it."""
    async with contextlib.aclosing(engines.changes()) as changes:
        async for _ in changes:
            for engine in engines.records.values():
                if engine.boot_id == boot_id:
                    return Wanted(layout=KernelLayout.parse(engine.offer.layout) if engine.offer else None)
    raise AssertionError("the changes of a view do not end")


async def _convert(path: Path, store: ArtifactStore) -> ArtifactId:
    async with contextlib.aclosing(Conversions(store, path.parent).convert(path.name)) as steps:
        async for step in steps:
            last = step
    assert isinstance(last, str)  # an artifact's id ends a conversion
    return ArtifactId(last)


async def _to_its_end(steps: AsyncGenerator[object, None]) -> None:
    async with contextlib.aclosing(steps):
        async for _ in steps:
            pass
