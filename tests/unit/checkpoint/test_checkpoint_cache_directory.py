"""The cache on disk: files under their digests, held while they are used, and leftovers known for what they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.cache_entry import CacheEntry
from services.common.checkpoint.held_artifact import HeldArtifact
from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest, ManifestFile
from services.common.ids import ArtifactId
from tests.tiny_checkpoints import make_tiny_artifact


@pytest.fixture
def cache(tmp_path: Path) -> CacheDirectory:
    return CacheDirectory.of(tmp_path / "cache")


def none(_entries: tuple[CacheEntry, ...], _needed_bytes: int) -> tuple[CacheEntry, ...]:
    return ()


def everything(entries: tuple[CacheEntry, ...], _needed_bytes: int) -> tuple[CacheEntry, ...]:
    return tuple(entry for entry in entries if entry.may_go)


def fill(cache: CacheDirectory, held: HeldArtifact, source: Path, file: ManifestFile) -> None:
    partial = cache.reserve(file, none)
    partial.write(0, (source / file.path).read_bytes())
    cache.publish(partial, held.stored, file)
    partial.close()


def bring(cache: CacheDirectory, source: Path, manifest: Manifest) -> None:
    held = cache.admit(manifest)
    for file in manifest.files:
        if not cache.has(held.stored, file):
            fill(cache, held, source, file)
    held.release()


def names(cache: CacheDirectory) -> set[str]:
    return {entry.name for entry in cache.entries()}


def test_an_artifact_lies_there_as_in_a_store(tmp_path: Path, cache: CacheDirectory) -> None:
    """Under its names, each a link to the file of that digest, immutable."""
    source, manifest = make_tiny_artifact(tmp_path)
    assert cache.hold(manifest.id) is None
    bring(cache, source, manifest)
    held = cache.hold(manifest.id)
    assert held is not None
    for file in manifest.files:
        path = held.stored.path(file)
        assert (source / file.path).read_bytes() == path.read_bytes()
        assert path.samefile(cache.root / "files" / file.sha256)
        assert 0o444 == path.stat().st_mode & 0o777
    assert {*(file.path for file in manifest.files), MANIFEST_NAME} == {
        path.name for path in held.stored.directory.iterdir()
    }
    held.release()


def test_what_is_held_or_pinned_says_so(tmp_path: Path, cache: CacheDirectory) -> None:
    """A lock of the process and a mark of the operator."""
    source, manifest = make_tiny_artifact(tmp_path)
    bring(cache, source, manifest)
    assert [True] == [entry.may_go for entry in cache.entries()]
    held = cache.hold(manifest.id)
    assert held is not None
    assert [(True, False)] == [(entry.is_held, entry.is_pinned) for entry in cache.entries()]
    held.release()
    cache.pin(manifest.id)
    assert [(False, True)] == [(entry.is_held, entry.is_pinned) for entry in cache.entries()]
    cache.unpin(manifest.id)
    assert [True] == [entry.may_go for entry in cache.entries()]


def test_files_go_with_the_last_artifact_that_has_them(tmp_path: Path, cache: CacheDirectory) -> None:
    """Two share their tokenizer: it stays for the one that stays."""
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(2)]
    for source, manifest in made:
        bring(cache, source, manifest)
    (_, first), (_, second) = made
    cache.pin(second.id)
    wanted = ManifestFile(path="x", size_bytes=1, sha256="f" * 64, role=first.files[0].role)
    cache.reserve(wanted, everything).close()
    assert {second.id, wanted.sha256} == names(cache)
    assert {file.sha256 for file in second.files} == {
        path.name for path in (cache.root / "files").iterdir() if not path.name.startswith(".")
    }


def test_a_manifest_that_the_disk_spoilt_is_no_artifact(tmp_path: Path, cache: CacheDirectory) -> None:
    """It goes; the files stay for whoever admits the artifact again, until the next sweep."""
    source, manifest = make_tiny_artifact(tmp_path)
    bring(cache, source, manifest)
    path = cache.root / "artifacts" / manifest.id / MANIFEST_NAME
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.hold(manifest.id) is None
    assert set() == names(cache)
    held = cache.admit(manifest)
    assert all(cache.has(held.stored, file) for file in manifest.files)
    held.release()


def test_a_forgotten_file_is_gone_from_every_artifact(tmp_path: Path, cache: CacheDirectory) -> None:
    """What one found wrong is wrong for all that have it; nothing else goes."""
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(2)]
    for source, manifest in made:
        bring(cache, source, manifest)
    shared = made[0][1].file("tokenizer.json")
    assert shared is not None
    assert cache.forget(shared)
    assert not cache.forget(shared)
    for _, manifest in made:
        held = cache.hold(manifest.id)
        assert held is not None
        assert [shared.path] == [file.path for file in manifest.files if not cache.has(held.stored, file)]
        held.release()


def test_a_sweep_takes_what_the_dead_left(tmp_path: Path, cache: CacheDirectory) -> None:
    """Files that no artifact links, manifests half written, old partial files; not what somebody fills, nor new ones."""
    source, manifest = make_tiny_artifact(tmp_path)
    bring(cache, source, manifest)
    held = cache.admit(manifest)
    old, new, filled = (
        ManifestFile(path="x", size_bytes=9, sha256=digit * 64, role=manifest.files[0].role)
        for digit in "abc"
    )
    for file in (old, new):
        cache.reserve(file, none).close()
    filling = cache.reserve(filled, none)
    for file in (old, filled):
        os.utime(cache.root / "files" / f".{file.sha256}.partial", (1, 1))
    (cache.root / "files" / ("d" * 64)).write_bytes(b"nobody's")
    (cache.root / f".{manifest.id}.manifest").write_bytes(b"half")
    assert {old.sha256, "d" * 64} == set(cache.sweep(partials_before_s=2.0))
    assert {manifest.id, new.sha256, filled.sha256} == names(cache)
    assert not list(cache.root.glob(".*.manifest"))
    filling.close()
    held.release()


def test_what_was_kept_of_a_file_is_still_there(cache: CacheDirectory, tmp_path: Path) -> None:
    """The next to reserve it finds the bytes, and holes where there were none."""
    _, manifest = make_tiny_artifact(tmp_path)
    weights = manifest.weights
    first = cache.reserve(weights, none)
    assert (0, False) == (first.needed_bytes, first.has_data(0, weights.size_bytes))
    first.write(8192, b"kept")
    first.close()
    second = cache.reserve(weights, none)
    assert b"kept" == second.read(8192, 8196)
    assert second.has_data(8192, 8196)
    second.close()


def test_a_pin_may_come_before_its_artifact(cache: CacheDirectory) -> None:
    """And goes without one."""
    name = ArtifactId("0" * 64)
    cache.pin(name)
    assert {name} == cache.pins
    cache.unpin(name)
    cache.unpin(name)
    assert frozenset() == cache.pins
