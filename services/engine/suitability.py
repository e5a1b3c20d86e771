"""Whether this engine can serve an artifact, from its manifest alone: asked before a byte of weights is read for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from services.common.checkpoint.graph_hash import topology_digest
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import INPUT_IDS, Offer
from services.common.errors import PreconditionFailed
from services.common.ids import ArtifactId
from services.common.release import release
from services.engine.host import DEVICE_CLASS
from services.engine.loaded_model import PreparedArtifact
from services.engine.model.weights import PRECISIONS, DTypeChoice


class ManifestLoader(Protocol):
    """A loader that gives manifests, too."""

    async def manifest(self, artifact_id: ArtifactId) -> Manifest: ...
    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact: ...
    async def text_files(self, artifact_id: ArtifactId) -> Mapping[str, bytes]: ...


class SuitableOnly:
    """A `generation_manager.Loader` that has artifacts prepared only if this engine can serve them.

    Args:
        loader: Prepares them.
        offer: What this engine offers.
        check_memory: Raises Overloaded if it has not the memory for an artifact; called in a thread.
        check_alone: The same, if it had not though nothing else were there.
    """

    def __init__(
        self,
        loader: ManifestLoader,
        offer: Offer,
        check_memory: Callable[[Manifest], object] = lambda _: None,
        check_alone: Callable[[Manifest], object] = lambda _: None,
    ) -> None:
        self._loader = loader
        self._offer = offer
        self._check_memory = check_memory
        self._check_alone = check_alone

    async def check(self, artifact_id: ArtifactId) -> None:
        """Whether there is any sense in making room for it.

        Raises:
            PreconditionFailed: The artifact requires what this engine is not.
            Overloaded: Memory would be short though nothing else were there.
        """
        manifest = await self._suitable(artifact_id)
        await asyncio.to_thread(self._check_alone, manifest)

    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact:
        """As the loader does.

        Raises:
            PreconditionFailed: The artifact requires what this engine is not.
            Overloaded: Memory would be short.
        """
        manifest = await self._suitable(artifact_id)
        await asyncio.to_thread(self._check_memory, manifest)
        return await self._loader.prepare(artifact_id)

    async def _suitable(self, artifact_id: ArtifactId) -> Manifest:
        manifest = await self._loader.manifest(artifact_id)
        await asyncio.to_thread(check_suitable, manifest, self._offer)
        return manifest

    async def text_files(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        """As the loader does."""
        return await self._loader.text_files(artifact_id)


def offer_of(dtype: DTypeChoice) -> Offer:
    """What an engine offers that computes in `dtype`."""
    return Offer(
        runtime=release(),
        device_class=DEVICE_CLASS,
        precisions=frozenset(each.value for each in PRECISIONS[dtype]),
        input_schemas=frozenset({INPUT_IDS}),
    )


def check_suitable(manifest: Manifest, offer: Offer) -> None:
    """Raises PreconditionFailed, naming what is required and what is here, unless an engine like this can serve it."""
    manifest.requires.check(offer)
    expected, actual = manifest.requires.graph.topology, topology_digest(manifest.architecture)
    if actual != expected:
        raise PreconditionFailed(
            "GRAPH_MISMATCH: this engine does not know how to build that model: graph part topology (expected "
            f"{expected[:12]}, actual {actual[:12]}); convert the original checkpoint with this build, or serve it "
            "with the build that converted it",
            reason="GRAPH_MISMATCH",
            metadata={"part": "topology", "expected": expected, "actual": actual},
        )
