"""The store: artifacts are there whole or not at all, and leftovers of the killed are swept."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import INCOMING_PREFIX, ArtifactStore
from services.common.checkpoint.owned_directory import OwnedDirectory, owned_directory, sweep
from services.common.checkpoint.verified_artifact import verify_weights
from services.common.errors import CorruptData, InvalidRequest, NotFound, Unavailable
from services.common.ids import ArtifactId
from tests.tiny_checkpoints import make_tiny_artifact


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "store")


def test_an_artifact_is_put_and_opened(tmp_path: Path, store: ArtifactStore) -> None:
    """Every file arrives, the manifest matches the id, and progress ends at the end."""
    source, manifest = make_tiny_artifact(tmp_path)
    told: list[tuple[int, int]] = []
    assert manifest.id == store.put(source, lambda *done: told.append(done))
    stored = store.open(manifest.id)
    assert manifest == stored.manifest
    for file in manifest.files:
        assert (source / file.path).read_bytes() == stored.path(file).read_bytes()
    assert (manifest.total_bytes, manifest.total_bytes) == told[-1]


def test_putting_twice_is_putting_once(tmp_path: Path, store: ArtifactStore) -> None:
    """The second put changes nothing and leaves nothing."""
    source, manifest = make_tiny_artifact(tmp_path)
    store.put(source)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    assert manifest.id == store.put(source)
    assert before == {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}


def spoil(path: Path) -> None:
    """Another last byte, the same length."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_replacing_mends_what_is_in_the_store(tmp_path: Path, store: ArtifactStore) -> None:
    """Good files take the place of bad ones, and whoever reads the old reads on.

    Fault injection: `replace` returns early, as `put` does, when the artifact is there.
    """
    source, manifest = make_tiny_artifact(tmp_path)
    stored = store.open(store.put(source))
    spoil(weights := stored.path(manifest.weights))
    with pytest.raises(CorruptData, match="block 0"):
        verify_weights(stored)
    with weights.open("rb") as reading:
        assert manifest.id == store.replace(source, verify_weights)
        assert manifest.weights.size_bytes == len(reading.read())
    verify_weights(store.open(manifest.id))
    assert [manifest.id] == [path.name for path in store.root.iterdir()]


def test_bad_files_replace_nothing(tmp_path: Path, store: ArtifactStore) -> None:
    """Fault injection: `replace` swaps before it verifies."""
    source, manifest = make_tiny_artifact(tmp_path)
    store.put(source)
    spoil(source / manifest.weights.path)
    with pytest.raises(CorruptData, match="block 0"):
        store.replace(source, verify_weights)
    verify_weights(store.open(manifest.id))
    assert [manifest.id] == [path.name for path in store.root.iterdir()]


def test_replacing_what_is_not_there_is_putting(tmp_path: Path, store: ArtifactStore) -> None:
    """A repair needs nothing to repair."""
    source, manifest = make_tiny_artifact(tmp_path)
    assert manifest.id == store.replace(source, verify_weights)
    verify_weights(store.open(manifest.id))


def test_a_failed_swap_gives_the_old_files_their_place_back(
    tmp_path: Path, store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault injection: `_swap` does not rename back."""
    source, manifest = make_tiny_artifact(tmp_path)
    store.put(source)

    def full(directory: Path, destination: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("services.common.checkpoint.artifact_store.publish_directory", full)
    with pytest.raises(OSError, match="No space"):
        store.replace(source, verify_weights)
    verify_weights(store.open(manifest.id))


def test_the_loser_of_a_race_finds_the_artifact_there(tmp_path: Path, store: ArtifactStore) -> None:
    """Two puts of one artifact at a time: the second renames onto the first's and is content."""
    source, manifest = make_tiny_artifact(tmp_path)
    store.put(source)
    with owned_directory(store.root, INCOMING_PREFIX) as late:
        (late / "manifest.json").write_bytes(manifest.encode())
        assert manifest.id == store.adopt(late, manifest)
    assert [manifest.id] == [path.name for path in store.root.iterdir()]


@pytest.mark.parametrize("name", ["model.halogen", "tokenizer.json"])
def test_a_file_of_another_size_is_not_stored(tmp_path: Path, store: ArtifactStore, name: str) -> None:
    """A truncated or longer file fails the put, and nothing of it stays."""
    source, _ = make_tiny_artifact(tmp_path)
    whole = (source / name).read_bytes()
    for content in (whole[:-1], whole + b"x"):
        (source / name).write_bytes(content)
        with pytest.raises(CorruptData, match=f"{name} has .* bytes, not {len(whole)};"):
            store.put(source)
    assert not store.root.exists()


def test_links_pipes_and_directories_are_not_followed(tmp_path: Path, store: ArtifactStore) -> None:
    """A file that leads elsewhere is refused, and a pipe hangs nobody."""
    source, _ = make_tiny_artifact(tmp_path)
    path = source / "config.json"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptData, match="plain file"):
        store.put(source)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptData, match="plain file"):
        store.put(source)
    path.unlink()
    with pytest.raises(CorruptData, match=r"config\.json"):
        store.put(source)


def test_what_is_no_artifact_is_refused(tmp_path: Path, store: ArtifactStore) -> None:
    """The remedy is named."""
    for source in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InvalidRequest, match="halogen convert"):
            store.put(source)


def test_opening_says_what_is_wrong(tmp_path: Path, store: ArtifactStore) -> None:
    """No store, no artifact, no id, another artifact under the id: four different answers."""
    absent = ArtifactId("0" * 64)
    with pytest.raises(Unavailable, match="--store"):
        store.open(absent)
    source, manifest = make_tiny_artifact(tmp_path)
    store.put(source)
    with pytest.raises(NotFound):
        store.open(absent)
    for path in ("../" + manifest.id, "", "A" * 64, manifest.id + "/"):
        with pytest.raises(InvalidRequest):
            store.open(ArtifactId(path))
    (store.root / manifest.id).rename(store.root / absent)
    with pytest.raises(CorruptData, match="another artifact's"):
        store.open(absent)


def test_a_store_is_a_directory_or_a_file_url(tmp_path: Path) -> None:
    """Other schemes wait for another day and say so."""
    assert tmp_path / "a b" == ArtifactStore.at(f"file://{tmp_path}/a%20b").root
    assert tmp_path == ArtifactStore.at(str(tmp_path)).root
    for location in ("", "s3://bucket/x", "file://host/x", "https://example.org"):
        with pytest.raises(InvalidRequest, match="file:///absolute/path"):
            ArtifactStore.at(location)


OWNER = """
import sys, time
from pathlib import Path
from services.common.checkpoint.owned_directory import OwnedDirectory
directory = OwnedDirectory.create(Path(sys.argv[1]), "owned-")
(directory.path / "file").write_text("x")
print(directory.path, flush=True)
time.sleep(600)
"""


def test_directories_of_the_living_are_left_and_of_the_dead_are_swept(tmp_path: Path) -> None:
    """The owner's lock, and nothing else, says whether a directory is a leftover."""
    mine = OwnedDirectory.create(tmp_path, "owned-")
    with subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        theirs = Path(owner.stdout.readline().decode().strip())
        assert () == sweep(tmp_path, "owned-")
        owner.kill()
    assert (theirs,) == sweep(tmp_path, "owned-")
    assert [mine.path] == list(tmp_path.iterdir())
    mine.remove()
    assert [] == list(tmp_path.iterdir())


def test_a_sweep_follows_no_link_and_touches_no_other_name(tmp_path: Path) -> None:
    """What merely looks alike stays."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("x")
    (tmp_path / "owned-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "owned-file").write_text("x")
    assert () == sweep(tmp_path, "owned-")
    assert () == sweep(tmp_path / "absent", "owned-")
    assert (tmp_path / "elsewhere" / "file").exists()


def test_a_killed_put_leaves_nothing_for_the_next(tmp_path: Path, store: ArtifactStore) -> None:
    """The next put sweeps what the killed one had copied."""
    source, manifest = make_tiny_artifact(tmp_path)
    leftover = store.root / f"{INCOMING_PREFIX}0123456789abcdef"
    leftover.mkdir(parents=True)
    (leftover / "model.halogen").write_bytes(b"half")
    store.put(source)
    assert [manifest.id] == [path.name for path in store.root.iterdir()]


def test_without_locks_directories_work_and_nobody_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses to lock a directory: leftovers then stay, the work goes on."""

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", flock)
    with owned_directory(tmp_path, "owned-") as directory:
        assert () == sweep(tmp_path, "owned-")
        assert directory.is_dir()
    assert [] == list(tmp_path.iterdir())


def test_a_directory_swept_while_it_was_being_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking, a sweep may come first."""
    original, swept = os.open, list[Path]()

    def sweep_first(path: Path, flags: int) -> int:
        if not swept:
            swept.append(path)
            path.rmdir()
        return original(path, flags)

    monkeypatch.setattr(os, "open", sweep_first)
    with owned_directory(tmp_path, "owned-") as directory:
        assert [directory] == list(tmp_path.iterdir())
        assert [directory] != swept
