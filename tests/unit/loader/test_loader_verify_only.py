"""Artifacts verified where they lie: for hosts without room for them beside what serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.errors import CorruptData, NotFound
from services.common.ids import ArtifactId
from services.common.memory_guard import Bound, MemoryGuard
from services.loader.directory_place import DirectoryPlace
from services.loader.place import PlaceKind
from services.loader.preparations import Preparations
from tests.unit.loader.disk import flip
from tests.unit.loader.preparing import files_in, open_preparations

FULL = MemoryGuard(1, lambda: [Bound("this host", 1, 1)])


async def verified(preparations: Preparations, artifact_id: ArtifactId) -> None:
    """Returns when every byte was."""
    async for _ in preparations.check(artifact_id):
        pass


async def test_every_byte_is_read_and_nothing_is_kept(
    store: ArtifactStore, stored: StoredArtifact, shm: Path
) -> None:
    """Where there is no memory for it, too.

    Fault injection: turns red when `Loads.check` foresees memory, or keeps what it has verified.
    """
    place = DirectoryPlace(PlaceKind.TMPFS, shm / "weights")
    async with open_preparations(store, place, guard=FULL) as preparations:
        await verified(preparations, stored.manifest.id)
        assert ((), []) == (preparations.artifact_ids, files_in(shm))


async def test_a_wrong_byte_is_found(preparations: Preparations, stored: StoredArtifact) -> None:
    """As when it is loaded."""
    weights = stored.path(stored.manifest.weights)
    weights.chmod(0o644)
    flip(weights, weights.stat().st_size - 1)
    with pytest.raises(CorruptData, match="does not match its digest"):
        await verified(preparations, stored.manifest.id)


async def test_what_the_store_has_not_is_not_found(preparations: Preparations) -> None:
    """The caller hears it, whoever did the work."""
    with pytest.raises(NotFound):
        await verified(preparations, ArtifactId("f" * 64))
