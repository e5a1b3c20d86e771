"""Artifacts on their way to where they can be read: manifest, files brought here, small files and header verified.

Weights, by far the most of it, are brought last, and only when those in memory will not do.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

import structlog

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.header import Header
from services.common.checkpoint.verified_artifact import read_header, verify_small_files
from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.common.telemetry.attributes import ARTIFACT_ID, SIZE_BYTES
from services.common.telemetry.tracing import span
from services.loader.artifacts import Artifacts, Listener
from services.loader.metrics import LoaderMetrics, Stage
from services.loader.place import Holding
from services.loader.residents import Prepared

R = TypeVar("R")

log = structlog.get_logger()


class Verified(NamedTuple):
    """An artifact of which all but the weights' data is verified."""

    stored: StoredArtifact
    header: Header

    @property
    def artifact_id(self) -> ArtifactId:
        return self.stored.manifest.id

    @property
    def attributes(self) -> dict[str, str | int]:
        """For spans."""
        return attributes(self.stored)

    def prepared(self, holding: Holding, *, huge_pages: bool, lazy_bytes: int = 0) -> Prepared:
        return Prepared(
            artifact_id=self.artifact_id,
            path=self.stored.manifest.weights.path,
            identity=self.header.identity,
            holding=holding,
            huge_pages=huge_pages,
            lazy_bytes=lazy_bytes,
        )


async def _nothing(_stored: StoredArtifact) -> None:
    """Foresees nothing, finds nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job(Generic[R]):
    """What is to become of an artifact.

    Attributes:
        work: Verifies the weights' data, and makes something of them.
        foresee: Raises, before anything but the manifest is brought, what would end the work later.
        find: What there is already, so that no weights need to be brought; None where there is nothing.
    """

    work: Callable[[Verified], Awaitable[R]]
    foresee: Callable[[StoredArtifact], Awaitable[None]] = _nothing
    find: Callable[[StoredArtifact], Awaitable[R | None]] = _nothing


class Arrivals:
    """Lets artifacts arrive.

    Args:
        artifacts: Where they come from.
        metrics: Told how long it took.
        admit: Looks at an artifact before more of it than its manifest is brought; raises what speaks against it.
    """

    def __init__(
        self, artifacts: Artifacts, metrics: LoaderMetrics, admit: Callable[[StoredArtifact], object]
    ) -> None:
        self._artifacts = artifacts
        self._metrics = metrics
        self._admit = admit

    async def use(self, artifact_id: ArtifactId, listener: Listener, job: Job[R]) -> R:
        """What comes of the artifact, whose files stay meanwhile; done once more if a copy of one was spoilt here.

        Args:
            artifact_id: Which.
            listener: Hears of the bytes that are to be brought, and of those that are to be verified.
            job: What to make of it.

        Raises:
            HalogenError: As `Artifacts` and the job say, or a file is not what the manifest names.
        """
        try:
            return await self._use(artifact_id, listener, job)
        except CorruptData as fault:
            if not await self._artifacts.mend(artifact_id, fault):
                raise
            log.warning("cached_file_forgotten", artifact_id=artifact_id, error=str(fault))
        return await self._use(artifact_id, listener, job)

    async def _use(self, artifact_id: ArtifactId, listener: Listener, job: Job[R]) -> R:
        async with self._artifacts.opened(artifact_id) as stored:
            await asyncio.to_thread(self._admit, stored)
            await job.foresee(stored)
            listener.expect(stored.manifest.total_bytes)
            await self._bring_small(stored, listener)
            if (found := await job.find(stored)) is not None:
                return found
            await self._artifacts.bring(stored, stored.manifest.weights, listener)
            header = await asyncio.to_thread(read_header, stored)
            return await job.work(Verified(stored, header))

    async def _bring_small(self, stored: StoredArtifact, listener: Listener) -> None:
        """All files but the weights, verified."""
        weights = stored.manifest.weights.path
        for file in stored.manifest.small_files:
            await self._artifacts.bring(stored, file, listener)
        with self._metrics.stage(Stage.VERIFY), span("verify", attributes(stored)):
            listener.advance(await asyncio.to_thread(verify_small_files, stored, absent={weights}))


def attributes(stored: StoredArtifact) -> dict[str, str | int]:
    """Of an artifact, for spans."""
    return {ARTIFACT_ID: stored.manifest.id, SIZE_BYTES: stored.manifest.total_bytes}
