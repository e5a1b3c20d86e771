"""A cache of artifacts on the disk of one host, shared by its loaders: every file lies in it once, under its digest.

::

    artifacts/ID/     an artifact: links, under their names, to files below; the time of its manifest.json is that of its
                      last use, and a shared lock on it says that it is in use
    files/SHA256      a finished file: all of it was verified; it goes with the last artifact that links it
    files/.NAME.partial, files/.NAME.turn    one on its way, and whose turn it is to bring or make it
    derived/ID.LAYOUT    the artifact's weights in a kernel's layout; it goes with the artifact or before
    pins/ID           this artifact is not to be evicted
    lock              held by whoever changes what is there, for a moment

Locks die with their holders, so what a killed loader leaves is known for what it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.cache_entry import CacheEntry, EntryKind
from services.common.checkpoint.derived_files import DerivedFiles, HeldDerived
from services.common.checkpoint.durable import sync
from services.common.checkpoint.held_artifact import HeldArtifact
from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest, ManifestFile
from services.common.checkpoint.partial_file import PartialFile
from services.common.errors import HalogenError
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId

NAME: Final = "artifacts"
_PARTIAL: Final = ".partial"

Choose = Callable[[tuple[CacheEntry, ...], int], Sequence[CacheEntry]]


class CacheDirectory:
    """The directory; `of` makes it. Methods wait for the disk and for one another: call them in threads."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._artifacts, self._files, self._pins = root / "artifacts", root / "files", root / "pins"
        self._derived = DerivedFiles(root / "derived")

    @classmethod
    def of(cls, cache_dir: Path) -> Self:
        """The one below a user's cache directory; makes what is not there.

        Raises:
            OSError: It cannot be made or written.
        """
        directory = cls(cache_dir / NAME)
        folders = directory._artifacts, directory._files, directory._pins, directory._derived.folder
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        with directory._locked():
            return directory

    @property
    def free_bytes(self) -> int:
        """What the disk has left for this user."""
        disk = os.statvfs(self.root)
        return disk.f_bavail * disk.f_frsize

    @property
    def used_bytes(self) -> int:
        """The length of all files, finished or not."""
        folders = self._files, self._derived.folder
        return sum(_size_bytes(path) for folder in folders for path in folder.iterdir())

    def turn_path(self, name: str) -> Path:
        """The pipe whose holder brings the file of that digest, or makes the derived one of that name."""
        return self._files / f".{name}.turn"

    @property
    def turn_paths(self) -> tuple[Path, ...]:
        """Those of turns that somebody has or has died with."""
        return tuple(self._files.glob(".*.turn"))

    def hold(self, artifact_id: ArtifactId) -> HeldArtifact | None:
        """The artifact, held from eviction until it is released, if its manifest is here and sound."""
        directory = self._artifacts / artifact_id
        with self._locked():
            try:
                manifest = read_manifest(directory)
            except HalogenError:
                manifest = None
            if manifest is None or manifest.id != artifact_id:
                self._remove_artifact(artifact_id)
                return None
            return HeldArtifact.of(StoredArtifact(directory, manifest))

    def admit(self, manifest: Manifest) -> HeldArtifact:
        """Makes an artifact known, as yet without files, and holds it."""
        directory = self._artifacts / manifest.id
        with self._locked():
            if not (directory / MANIFEST_NAME).exists():
                self._write_manifest(directory, manifest)
            return HeldArtifact.of(StoredArtifact(directory, manifest))

    def _write_manifest(self, directory: Path, manifest: Manifest) -> None:
        fresh = self.root / f".{manifest.id}.manifest"
        fresh.write_bytes(manifest.encode())
        sync(fresh)
        directory.mkdir(exist_ok=True)
        fresh.rename(directory / MANIFEST_NAME)
        sync(directory)
        sync(self._artifacts)

    def has(self, stored: StoredArtifact, file: ManifestFile) -> bool:
        """Whether a held artifact's file is here; it is then also in its directory."""
        with self._locked():
            return self._link(stored, file)

    def reserve(self, file: ManifestFile, choose: Choose) -> PartialFile:
        """Room for all of a file; what was kept of an earlier try is still in it. Needs the file's turn.

        Args:
            file: Of an artifact that is held.
            choose: Says what has to go for so many bytes more, or raises.

        Raises:
            OSError: The disk is full all the same.
        """
        with self._locked():
            return self._reserve(PartialFile.open(self._partial_path(file.sha256), file.size_bytes), choose)

    def reserve_derived(self, name: str, size_bytes: int, choose: Choose) -> PartialFile:
        """The same for a derived file, of which nothing is kept: it is all zeros. Needs the name's turn."""
        with self._locked():
            path = self._partial_path(name)
            path.unlink(missing_ok=True)
            return self._reserve(PartialFile.open(path, size_bytes), choose)

    def _reserve(self, partial: PartialFile, choose: Choose) -> PartialFile:
        try:
            for entry in choose(self._entries(), partial.needed_bytes):
                self._remove(entry)
            partial.allocate()
        except BaseException:
            partial.close()
            raise
        return partial

    def trim(self, choose: Choose) -> None:
        """Removes what `choose` says has to go for no bytes more."""
        with self._locked():
            for entry in choose(self._entries(), 0):
                self._remove(entry)

    def publish(self, partial: PartialFile, stored: StoredArtifact, file: ManifestFile) -> None:
        """Gives a file that was filled and verified its name, after all of it is on the disk."""
        partial.finish()
        with self._locked():
            partial.path.rename(self._files / file.sha256)
            self._link(stored, file)
            sync(self._files)
            sync(stored.directory)

    def publish_derived(self, partial: PartialFile, name: str) -> None:
        """Gives a derived file its name, after all of it is on the disk."""
        partial.finish()
        with self._locked():
            partial.path.rename(self._derived.folder / name)
            sync(self._derived.folder)

    def hold_derived(self, name: str) -> HeldDerived | None:
        """The derived file of that name, held from eviction until it is released, if it is here."""
        with self._locked():
            return self._derived.hold(name)

    def has_derived(self, name: str) -> bool:
        return (self._derived.folder / name).exists()

    def forget_derived(self, name: str) -> None:
        """Removes one that turned out wrong; no error if there is none."""
        with self._locked():
            self._derived.remove(name)

    def forget(self, file: ManifestFile) -> bool:
        """Removes a file that turned out wrong, from every artifact; tells whether it was here."""
        with self._locked():
            try:
                wrong = (self._files / file.sha256).stat()
            except FileNotFoundError:
                return False
            for path in (*self._artifacts.glob("*/*"), self._files / file.sha256):
                with contextlib.suppress(FileNotFoundError):  # signatures on their way
                    if os.path.samestat(path.stat(), wrong):
                        path.unlink()
            return True

    def entries(self) -> tuple[CacheEntry, ...]:
        """All that may be evicted, or not, as it stands."""
        with self._locked():
            return self._entries()

    def pin(self, artifact_id: ArtifactId) -> None:
        """Keeps an artifact from eviction, also one that is yet to come."""
        (self._pins / artifact_id).touch()

    def unpin(self, artifact_id: ArtifactId) -> None:
        """Lets it go when its time comes; no error if it is not pinned."""
        (self._pins / artifact_id).unlink(missing_ok=True)

    @property
    def pins(self) -> frozenset[str]:
        return frozenset(path.name for path in self._pins.iterdir())

    def sweep(self, partials_before_s: float) -> tuple[str, ...]:
        """Removes what the dead left: files that no artifact links, and unheld partial ones of before that time.

        With what nobody can go on: derived files that were not finished, of whatever time.

        Args:
            partials_before_s: Unix seconds.

        Returns:
            The names of what went.
        """
        with self._locked():
            for left in self.root.glob(".*.manifest"):
                left.unlink()
            unheld = [each for each in self._partials() if not each.is_held]
            stale = [each for each in unheld if each.used_at_s < partials_before_s or _is_derived(each.name)]
            for entry in stale:
                self._remove(entry)
            return (*(entry.name for entry in stale), *self._remove_unlinked())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.root / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _link(self, stored: StoredArtifact, file: ManifestFile) -> bool:
        target = stored.path(file)
        if target.exists():
            return True
        with contextlib.suppress(FileNotFoundError):
            os.link(self._files / file.sha256, target)
            return True
        return False

    def _entries(self) -> tuple[CacheEntry, ...]:
        pins = self.pins
        artifacts = [
            CacheEntry.of_artifact(path, is_pinned=path.name in pins)
            for path in self._artifacts.iterdir()
            if ARTIFACT_ID_PATTERN.fullmatch(path.name) and (path / MANIFEST_NAME).is_file()
        ]
        return (*artifacts, *self._derived.entries(artifacts, pins), *self._partials())

    def _partials(self) -> tuple[CacheEntry, ...]:
        found: list[CacheEntry] = []
        for path in self._files.glob(f".*{_PARTIAL}"):
            with contextlib.suppress(FileNotFoundError):  # an empty one goes with whoever wanted to fill it
                found.append(CacheEntry.of_partial(path, path.name[1:].removesuffix(_PARTIAL)))
        return tuple(found)

    def _partial_path(self, name: str) -> Path:
        return self._files / f".{name}{_PARTIAL}"

    def _remove(self, entry: CacheEntry) -> None:
        match entry.kind:
            case EntryKind.ARTIFACT:
                self._derived.remove_of(entry.name)
                self._remove_artifact(ArtifactId(entry.name))
                self._remove_unlinked()
            case EntryKind.DERIVED:
                self._derived.remove(entry.name)
            case EntryKind.PARTIAL:
                self._partial_path(entry.name).unlink(missing_ok=True)

    def _remove_artifact(self, artifact_id: ArtifactId) -> None:
        """The manifest goes first: what is left without one is nobody's."""
        directory = self._artifacts / artifact_id
        (directory / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)

    def _remove_unlinked(self) -> tuple[str, ...]:
        """Removes finished files that no artifact links; returns their names."""
        alone = [
            path
            for path in self._files.iterdir()
            if not path.name.startswith(".") and path.stat().st_nlink == 1
        ]
        for path in alone:
            path.unlink()
        return tuple(path.name for path in alone)


def _is_derived(name: str) -> bool:
    """Whether it is no digest."""
    return "." in name


def _size_bytes(path: Path) -> int:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
