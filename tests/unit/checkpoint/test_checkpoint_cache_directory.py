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


def derive(cache: CacheDirectory, name: str, size_bytes: int = 9) -> None:
    partial = cache.reserve_derived(name, size_bytes, none)
    partial.write(0, b"x" * size_bytes)
    cache.publish_derived(partial, name)
    partial.discard()


def used_at(cache: CacheDirectory) -> dict[str, float]:
    return {entry.name: entry.used_at_s for entry in cache.entries()}


def test_what_was_derived_counts_and_is_used_like_an_artifact(cache: CacheDirectory, tmp_path: Path) -> None:
    """Its bytes are among those taken; it is held while it is read; a pin of its artifact keeps it, too.

    Fault injection: turns red when used_bytes leaves the folder out.
    """
    _, manifest = make_tiny_artifact(tmp_path)
    name = f"{manifest.id}.packed"
    assert (0, None) == (cache.used_bytes, cache.hold_derived(name))
    derive(cache, name)
    assert (9, [True]) == (cache.used_bytes, [entry.may_go for entry in cache.entries()])
    held = cache.hold_derived(name)
    assert held is not None
    assert [(True, False)] == [(entry.is_held, entry.is_pinned) for entry in cache.entries()]
    os.utime(held.path, (1, 1))
    held.release()
    assert 1 < used_at(cache)[name]
    cache.pin(manifest.id)
    assert [(False, True)] == [(entry.is_held, entry.is_pinned) for entry in cache.entries()]
    cache.forget_derived(name)
    assert (0, ()) == (cache.used_bytes, cache.entries())


def test_what_was_derived_goes_with_its_artifact_or_before(cache: CacheDirectory, tmp_path: Path) -> None:
    """It never counts as used later than the artifact, and no artifact leaves anything that was made of it.

    Fault injection: turns red when DerivedFiles.entries gives the file's own time alone.
    """
    source, manifest = make_tiny_artifact(tmp_path)
    name = f"{manifest.id}.packed"
    bring(cache, source, manifest)
    derive(cache, name)
    os.utime(cache.root / "artifacts" / manifest.id / MANIFEST_NAME, (5, 5))
    assert {manifest.id: 5, name: 5} == used_at(cache)
    os.utime(cache.root / "derived" / name, (3, 3))
    assert {manifest.id: 5, name: 3} == used_at(cache)

    def the_artifact(entries: tuple[CacheEntry, ...], _needed_bytes: int) -> tuple[CacheEntry, ...]:
        return tuple(entry for entry in entries if entry.is_artifact)

    cache.trim(the_artifact)
    assert (set(), []) == (names(cache), list((cache.root / "derived").iterdir()))


def test_room_for_what_is_derived_holds_nothing_of_an_earlier_try(cache: CacheDirectory) -> None:
    """What was half made begins anew, with zeros, since padding is never written; a sweep takes it at once.

    Fault injection: turns red when reserve_derived takes over what is there.
    """
    first = cache.reserve_derived("a.packed", 8192, none)
    first.write(0, b"stale")
    first.close()
    second = cache.reserve_derived("a.packed", 8192, none)
    assert bytes(8192) == second.read(0, 8192)
    assert () == cache.sweep(partials_before_s=0.0), "somebody fills it"
    second.close()
    assert ("a.packed",) == cache.sweep(partials_before_s=0.0)


def test_derived_files_are_evicted_for_room(cache: CacheDirectory) -> None:
    """Also where the artifact itself lies in a store of its own."""
    derive(cache, "a.packed")
    cache.reserve_derived("b.packed", 9, everything).close()
    assert {"b.packed"} == names(cache)
