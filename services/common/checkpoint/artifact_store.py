"""The store: a directory in which every artifact lies under its id, put there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from services.common.checkpoint.durable import publish_directory, sync
from services.common.checkpoint.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, ManifestFile
from services.common.checkpoint.owned_directory import owned_directory, sweep
from services.common.checkpoint.writer import Progress
from services.common.errors import AlreadyExists, CorruptData, InvalidRequest, NotFound, Unavailable
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId

INCOMING_PREFIX: Final = ".incoming-"
_COPY_BYTES: Final = 4 << 20


class StoredArtifact(NamedTuple):
    """An artifact in a directory. Its manifest matches its id; its files are yet to be verified."""

    directory: Path
    manifest: Manifest

    def path(self, file: ManifestFile) -> Path:
        return self.directory / file.path


class ArtifactStore:
    """Artifacts by id, in one directory.

    Args:
        root: The directory; made by the first `put`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def at(cls, location: str) -> ArtifactStore:
        """The store at a path or a file:// URL.

        Raises:
            InvalidRequest: It is another kind of URL.
        """
        url = urlsplit(location)
        if not url.scheme:
            return cls(Path(location).expanduser())
        if url.scheme == "file" and url.netloc in ("", "localhost") and url.path:
            return cls(Path(unquote(url.path)))
        raise InvalidRequest(f"store {location!r}: give a directory or a file:///absolute/path URL")

    @property
    def is_reachable(self) -> bool:
        return self.root.is_dir() and os.access(self.root, os.R_OK | os.X_OK)

    def open(self, artifact_id: ArtifactId) -> StoredArtifact:
        """The artifact, its manifest verified against its id.

        Raises:
            NotFound: It is not there.
            InvalidRequest: It is not an id.
            CorruptData: The manifest is not the one that the id names.
            Unavailable: The store is not there.
        """
        if not ARTIFACT_ID_PATTERN.fullmatch(artifact_id):
            raise InvalidRequest("an artifact id has 64 lower-case hexadecimal digits")
        if not self.is_reachable:
            raise Unavailable("the artifact store cannot be reached; see --store", retry_after_s=1.0)
        directory = self.root / artifact_id
        if not directory.is_dir():
            raise NotFound(f"artifact {artifact_id} is not in the store; put it there: halogen publish")
        manifest = read_manifest(directory)
        if manifest.id != artifact_id:
            raise CorruptData(f"{MANIFEST_NAME} of artifact {artifact_id} is another artifact's")
        return StoredArtifact(directory, manifest)

    def put(self, source: Path, progress: Progress = lambda _done, _total: None) -> ArtifactId:
        """Copies an artifact's files into the store; does nothing if they are there already.

        Digests are not verified here: whoever reads the artifact does that.

        Raises:
            InvalidRequest: `source` is no artifact directory.
            CorruptData: A file is missing or of another size than the manifest says.
        """
        manifest = read_manifest(source)
        if self.holds(manifest.id):
            return manifest.id
        with self._copied(source, manifest, progress) as incoming:
            return self.adopt(incoming, manifest)

    def replace(
        self,
        source: Path,
        verify: Callable[[StoredArtifact], object],
        progress: Progress = lambda _done, _total: None,
    ) -> ArtifactId:
        """Copies an artifact's files into the store, in place of those that are there.

        Whoever has the old files open reads them to the end; between old and new lies one renaming.

        Args:
            source: The artifact directory.
            verify: Raises what is wrong with the copy; the store's own files then stay.
            progress: Told of the bytes copied.

        Raises:
            InvalidRequest: `source` is no artifact directory.
            CorruptData: A file is missing or of another size than the manifest says.
        """
        manifest = read_manifest(source)
        with (
            self._copied(source, manifest, progress) as incoming,
            owned_directory(self.root, INCOMING_PREFIX) as aside,
        ):
            verify(StoredArtifact(incoming, manifest))
            return self._swap(incoming, manifest, aside)

    def _swap(self, incoming: Path, manifest: Manifest, aside: Path) -> ArtifactId:
        """Puts what has the artifact's place into `aside`, and back again if the new cannot have it."""
        place, old = self.root / manifest.id, aside / manifest.id
        with contextlib.suppress(FileNotFoundError):
            place.rename(old)
        try:
            return self.adopt(incoming, manifest)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                old.rename(place)
            raise

    @contextlib.contextmanager
    def _copied(self, source: Path, manifest: Manifest, progress: Progress) -> Iterator[Path]:
        """A synced copy on the store's file system, removed at the end of the scope unless it was renamed."""
        self.root.mkdir(parents=True, exist_ok=True)
        sweep(self.root, INCOMING_PREFIX)
        with owned_directory(self.root, INCOMING_PREFIX) as incoming:
            done_bytes = 0
            for file in manifest.files:
                for piece_bytes in _copy(source / file.path, incoming / file.path, file):
                    done_bytes += piece_bytes
                    progress(done_bytes, manifest.total_bytes)
            (incoming / MANIFEST_NAME).write_bytes(manifest.encode())
            sync(incoming / MANIFEST_NAME)
            yield incoming

    def adopt(self, directory: Path, manifest: Manifest) -> ArtifactId:
        """Gives a synced artifact directory on the store's file system its place there, by renaming it."""
        try:
            publish_directory(directory, self.root / manifest.id)
        except AlreadyExists:
            if not self.holds(manifest.id):
                raise
        return manifest.id

    def holds(self, artifact_id: ArtifactId) -> bool:
        """Whether the artifact's directory is there; says nothing of its files."""
        return (self.root / artifact_id / MANIFEST_NAME).is_file()


def read_manifest(directory: Path) -> Manifest:
    """The manifest of an artifact directory.

    Raises:
        InvalidRequest: There is none.
        CorruptData: It is ill-formed.
    """
    try:
        with (directory / MANIFEST_NAME).open("rb") as file:
            return Manifest.decode(file.read(MAX_MANIFEST_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidRequest(
            f"no {MANIFEST_NAME} there: not an artifact; make one with: halogen convert SRC OUT",
            reason="NOT_AN_ARTIFACT",
        ) from None


def _copy(source: Path, destination: Path, file: ManifestFile) -> Iterator[int]:
    """Copies one file, no further than its manifest's size; yields the length of every piece."""
    copied_bytes = 0
    with _open_plain(source, file) as reader, destination.open("xb") as writer:
        while copied_bytes <= file.size_bytes and (piece := reader.read(_COPY_BYTES)):
            copied_bytes += writer.write(piece)
            yield len(piece)
        writer.flush()
        os.fsync(writer.fileno())
    if copied_bytes != file.size_bytes:
        raise CorruptData(f"{file.path}: not {file.size_bytes} bytes long, as the manifest says")
    destination.chmod(0o444)


def _open_plain(path: Path, file: ManifestFile) -> BinaryIO:
    """Opens a regular file; a link, a device or a pipe would lead out of the artifact."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise CorruptData(f"{file.path}: the manifest names it, yet no plain file is there") from None
    reader = open(descriptor, "rb", buffering=0)  # noqa: PTH123, SIM115  # a descriptor; the caller closes it
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        reader.close()
        raise CorruptData(f"{file.path}: not a plain file")
    return reader
