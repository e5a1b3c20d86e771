"""An artifact that somebody else writes into the store, file by file: nothing of it is used before all of it is there."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest
from services.common.errors import CorruptData, NotFound
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.directory_place import DirectoryPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.residents import Prepared

ORDERS: Final = 8


class Piece(NamedTuple):
    """A half of a file."""

    name: str
    offset: int
    content: bytes


def pieces(source: Path, names: list[str]) -> list[Piece]:
    found = []
    for name in names:
        content = (source / name).read_bytes()
        half = len(content) // 2
        found += [Piece(name, 0, content[:half]), Piece(name, half, content[half:])]
    return found


def write(directory: Path, piece: Piece) -> None:
    """Puts a piece where it belongs; what is before it may still be missing."""
    with (directory / piece.name).open("r+b" if (directory / piece.name).exists() else "xb") as file:
        file.seek(piece.offset)
        file.write(piece.content)


async def prepare(preparations: Preparations, manifest: Manifest) -> Prepared:
    *_, last = [step async for step in preparations.prepare(manifest.id)]
    assert isinstance(last, Prepared)
    return last


# Turns red when: ArtifactStore.open takes any directory for an artifact, or a file's size is not compared.
@pytest.mark.parametrize("seed", range(ORDERS))
async def test_r_a13_what_arrives_in_any_order_is_used_only_when_it_is_whole(
    store: ArtifactStore, three_blocks: Path, shm: Path, seed: int
) -> None:
    """Halves of files in a random order, with a look after each: the manifest, too, comes when it comes."""
    manifest = Manifest.decode((three_blocks / MANIFEST_NAME).read_bytes())
    arriving = pieces(three_blocks, [*(file.path for file in manifest.files), MANIFEST_NAME])
    random.Random(seed).shuffle(arriving)
    places = (DirectoryPlace(PlaceKind.TMPFS, shm / "weights"),)
    metrics = LoaderMetrics(CollectorRegistry())
    async with Preparations(
        ArtifactsInPlace(store), places, reading=Reading(threads=2), keep_s=10.0, metrics=metrics
    ) as preparations:
        (store.root / manifest.id).mkdir()
        for piece in arriving:
            with pytest.raises((NotFound, CorruptData)):
                await prepare(preparations, manifest)
            write(store.root / manifest.id, piece)
        prepared = await prepare(preparations, manifest)
        weights = three_blocks / manifest.weights.path
        assert weights.read_bytes() == Path(prepared.holding.mapped_path).read_bytes()


async def test_while_the_manifest_is_missing_the_artifact_is_on_its_way(
    store: ArtifactStore, three_blocks: Path
) -> None:
    """Not bad, just not there yet: whoever waits for it goes on waiting."""
    manifest = Manifest.decode((three_blocks / MANIFEST_NAME).read_bytes())
    (store.root / manifest.id).mkdir()
    with pytest.raises(NotFound, match="which is written last") as raised:
        store.open(manifest.id)
    assert "ARTIFACT_INCOMPLETE" == raised.value.reason
