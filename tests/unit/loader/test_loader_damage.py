"""Whatever is damaged in an artifact is refused by name, and reaches no engine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.header import Header
from services.common.errors import (
    CorruptData,
    HalogenError,
    InvalidRequest,
    NotFound,
)
from services.common.ids import ArtifactId
from services.loader.preparations import Preparations
from tests.tiny_checkpoints import MULTI_BLOCK, make_tiny_artifact
from tests.unit.checkpoint.forged_artifact import LIES, make_forged_artifact
from tests.unit.checkpoint.scaled_artifact import make_scaled_artifact
from tests.unit.loader.disk import flip
from tests.unit.loader.preparing import files_in, prepare


@pytest.mark.parametrize("block", [0, 1, 2])
async def test_a_bad_block_leaves_nothing_and_may_be_mended(
    preparations: Preparations, stored: StoredArtifact, shm: Path, block: int
) -> None:
    """A failed verification names the block and keeps no byte; after mending, the same call succeeds.

    Turns red when: WeightLoad.run publishes before it reads.
    """
    weights = stored.path(stored.manifest.weights)
    position = weights.stat().st_size - (3 - block) * (4 << 20) + 12_345
    flip(weights, position)
    with pytest.raises(CorruptData, match=f"block {block} of 3"):
        await prepare(preparations, stored.manifest.id)
    assert ([], ()) == (files_in(shm), preparations.artifact_ids)
    flip(weights, position)
    await prepare(preparations, stored.manifest.id)


def make_link(path: Path) -> None:
    path.rename(path.parent.with_name("elsewhere"))
    path.symlink_to(path.parent.with_name("elsewhere"))


DAMAGE: dict[str, tuple[str, Callable[[Path], object], type[HalogenError], str]] = {
    "tokenizer flipped": ("tokenizer.json", lambda p: flip(p, 100), CorruptData, r"tokenizer\.json does not match"),
    "config flipped": ("config.json", lambda p: flip(p, 0), CorruptData, r"config\.json does not match"),
    "config longer": ("config.json", lambda p: p.write_bytes(p.read_bytes() + b" "), CorruptData, r"config\.json has"),
    "config missing": ("config.json", lambda p: p.unlink(), CorruptData, r"config\.json is missing"),
    "config a link": ("config.json", make_link, CorruptData, r"config\.json is not a plain file"),
    "a file too many": ("notes.txt", lambda p: p.write_text("hello"), CorruptData, "'notes.txt' lies in the artifact's directory"),
    "weights missing": ("model.halogen", lambda p: p.unlink(), CorruptData, r"model\.halogen is missing"),
    "weights cut": ("model.halogen", lambda p: os.truncate(p, 4096), CorruptData, r"model\.halogen has 4096 bytes"),
    "weights empty": ("model.halogen", lambda p: os.truncate(p, 0), CorruptData, r"model\.halogen has 0 bytes"),
    "magic": ("model.halogen", lambda p: flip(p, 1), CorruptData, "not a weight file"),
    "version": ("model.halogen", lambda p: flip(p, 8), InvalidRequest, "format version"),
    "header": ("model.halogen", lambda p: flip(p, 200), CorruptData, "header"),
    "header padding": ("model.halogen", lambda p: flip(p, Header.decode(p.read_bytes()).data_offset - 1), CorruptData, "header padding"),
    "manifest flipped": ("manifest.json", lambda p: flip(p, 20), CorruptData, r"manifest\.json"),
    "manifest missing": ("manifest.json", lambda p: p.unlink(), NotFound, r"manifest\.json, which is written last, is not there"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
async def test_damage_to_any_file_is_refused_by_name(
    preparations: Preparations, stored: StoredArtifact, shm: Path, case: str
) -> None:
    """No byte of a damaged artifact reaches an engine."""
    name, damage, kind, expected = DAMAGE[case]
    damage(stored.directory / name)
    with pytest.raises(kind, match=expected):
        await prepare(preparations, stored.manifest.id)
    assert [] == files_in(shm)


async def test_a_scale_that_is_no_number_is_refused_before_a_place_is_taken(
    tmp_path: Path, preparations: Preparations, store: ArtifactStore, shm: Path
) -> None:
    """All digests are right, and yet no byte reaches an engine."""
    artifact, manifest = make_scaled_artifact(tmp_path / "scaled", bytes.fromhex("003c 007e"))
    store.put(artifact)
    with pytest.raises(CorruptData, match="holds a scale that is not a finite number"):
        await prepare(preparations, manifest.id)
    assert [] == files_in(shm)


@pytest.mark.parametrize("case", LIES)
async def test_a_table_that_lies_reaches_no_engine(
    tmp_path: Path, preparations: Preparations, store: ArtifactStore, shm: Path, case: str
) -> None:
    """The manifest vouches for it, and yet no place is taken."""
    lie, told = LIES[case]
    artifact, manifest = make_forged_artifact(tmp_path / "forged", lie)
    store.put(artifact)
    with pytest.raises(CorruptData, match=re.escape(told)):
        await prepare(preparations, manifest.id)
    assert [] == files_in(shm)


async def test_the_header_must_be_the_manifests(
    tmp_path: Path, preparations: Preparations, stored: StoredArtifact
) -> None:
    """Another model's weights of the same shape, whole in themselves, are still not these.

    Turns red when: read_header does not compare the identity.
    """
    other, _ = make_tiny_artifact(tmp_path / "other", MULTI_BLOCK, seed=1)
    stored.path(stored.manifest.weights).write_bytes((other / "model.halogen").read_bytes())
    with pytest.raises(CorruptData, match="another header than the manifest names"):
        await prepare(preparations, stored.manifest.id)


async def test_an_unknown_artifact_is_not_found(preparations: Preparations) -> None:
    """And every caller is told so."""
    with pytest.raises(NotFound):
        await prepare(preparations, ArtifactId("0" * 64))
