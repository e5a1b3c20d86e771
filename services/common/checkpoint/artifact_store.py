"""The store: a directory in which every artifact lies under its id, put there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from services.common.checkpoint.artifact_directory import check_directory, mismatch, open_file, open_plain
from services.common.checkpoint.durable import publish_directory, sync
from services.common.checkpoint.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, ManifestFile
from services.common.checkpoint.owned_directory import owned_directory, sweep
from services.common.checkpoint.signatures import MAX_SIGNATURES_BYTES, SIGNATURES_NAME
from services.common.checkpoint.writer import Progress
from services.common.errors import AlreadyExists, CorruptData, InvalidRequest, NotFound, Unavailable
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId

INCOMING_PREFIX: Final = ".incoming-"
NOT_AN_ARTIFACT: Final = "NOT_AN_ARTIFACT"  # the reason where there is no manifest
_COPY_BYTES: Final = 4 << 20


class StoredArtifact(NamedTuple):
    """An artifact in a directory. Its manifest matches its id; its files are yet to be verified."""

    directory: Path
    manifest: Manifest

    def path(self, file: ManifestFile) -> Path:
        return self.directory / file.path

    def check(self, absent: Collection[str] = ()) -> None:
        """Looks at names, kinds and sizes; raises CorruptData unless exactly the manifest's files are there.

        Those in `absent` may be missing.
        """
        check_directory(self.directory, self.manifest, absent)

    def open(self, file: ManifestFile) -> BinaryIO:
        """A file for reading; raises CorruptData unless it is a plain one of the manifest's size."""
        return open_file(self.directory, file)

    @property
    def signatures(self) -> bytes:
        """The file of signatures, as far as it may be long; empty where there is none."""
        with contextlib.suppress(FileNotFoundError), open_plain(self.directory / SIGNATURES_NAME) as file:
            return file.read(MAX_SIGNATURES_BYTES + 1)
        return b""

    def write_signatures(self, content: bytes) -> None:
        """Puts the file in place, whole or not at all; nobody else writes it meanwhile."""
        sweep(self.directory.parent, INCOMING_PREFIX)
        with owned_directory(self.directory.parent, INCOMING_PREFIX) as scratch:
            new = scratch / SIGNATURES_NAME
            new.write_bytes(content)
            new.chmod(0o444)
            sync(new)
            new.replace(self.directory / SIGNATURES_NAME)
            sync(self.directory)


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
            InvalidRequest: It is another kind of URL, or nothing.
        """
        url = urlsplit(location)
        if location and not url.scheme:
            return cls(Path(location).expanduser())
        if url.scheme == "file" and url.netloc in ("", "localhost") and url.path:
            return cls(Path(unquote(url.path)))
        raise InvalidRequest(
            f"store {location!r}: give a directory or a file:///absolute/path URL; loaders also read http:// and "
            "https:// stores: upload an artifact's files there below its id, then: halogen publish MODEL ID"
        )

    @property
    def is_reachable(self) -> bool:
        return self.root.is_dir() and os.access(self.root, os.R_OK | os.X_OK)

    def open(self, artifact_id: ArtifactId) -> StoredArtifact:
        """The artifact, its manifest verified against its id.

        Raises:
            NotFound: It is not there, or not yet whole: what fills the store from elsewhere writes the manifest last.
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
        manifest = _read_arrived(directory, artifact_id)
        if manifest.id != artifact_id:
            raise CorruptData(f"{MANIFEST_NAME} of artifact {artifact_id} is another artifact's")
        return StoredArtifact(directory, manifest)

    def put(self, source: Path, progress: Progress = lambda _done, _total: None) -> ArtifactId:
        """Copies an artifact's files into the store; if they are there already, its signatures alone.

        Digests are not verified here: whoever reads the artifact does that.

        Raises:
            InvalidRequest: `source` is no artifact directory.
            CorruptData: It does not hold exactly the manifest's files; nothing is written then.
        """
        manifest = read_manifest(source)
        if self.holds(manifest.id):
            self._take_signatures(StoredArtifact(source, manifest))
            return manifest.id
        with self._copied(source, manifest, progress) as incoming:
            return self.adopt(incoming, manifest)

    def _take_signatures(self, given: StoredArtifact) -> None:
        there = given._replace(directory=self.root / given.manifest.id)
        if given.signatures not in (b"", there.signatures):
            there.write_signatures(given.signatures)

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
            CorruptData: It does not hold exactly the manifest's files; nothing is written then.
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
        check_directory(source, manifest)
        self.root.mkdir(parents=True, exist_ok=True)
        sweep(self.root, INCOMING_PREFIX)
        with owned_directory(self.root, INCOMING_PREFIX) as incoming:
            done_bytes = 0
            for file in manifest.files:
                for piece_bytes in _copy(source, incoming, file):
                    done_bytes += piece_bytes
                    progress(done_bytes, manifest.total_bytes)
            companions = {
                SIGNATURES_NAME: StoredArtifact(source, manifest).signatures,
                MANIFEST_NAME: manifest.encode(),
            }
            for name, content in companions.items():
                if content:
                    (incoming / name).write_bytes(content)
                    sync(incoming / name)
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
        with open_plain(directory / MANIFEST_NAME) as file:
            return Manifest.decode(file.read(MAX_MANIFEST_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidRequest(
            f"no {MANIFEST_NAME} there: not an artifact; make one with: halogen convert SRC OUT",
            reason=NOT_AN_ARTIFACT,
        ) from None


def _read_arrived(directory: Path, artifact_id: ArtifactId) -> Manifest:
    """The manifest in the store, which is written last: while there is none the artifact is on its way."""
    try:
        return read_manifest(directory)
    except InvalidRequest as fault:
        if fault.reason != NOT_AN_ARTIFACT:
            raise
        raise NotFound(
            f"artifact {artifact_id} is not whole in the store: its {MANIFEST_NAME}, which is written last, is not "
            "there; wait for whoever writes it, or put it there anew: halogen publish",
            reason="ARTIFACT_INCOMPLETE",
        ) from None


def _copy(source: Path, destination: Path, file: ManifestFile) -> Iterator[int]:
    """Copies one file, no further than its manifest's size; yields the length of every piece."""
    copied_bytes = 0
    with open_file(source, file) as reader, (destination / file.path).open("xb") as writer:
        while copied_bytes <= file.size_bytes and (piece := reader.read(_COPY_BYTES)):
            copied_bytes += writer.write(piece)
            yield len(piece)
        writer.flush()
        os.fsync(writer.fileno())
    if copied_bytes != file.size_bytes:
        raise mismatch(
            file, "length", f"has changed while it was read: it is not {file.size_bytes} bytes long"
        )
    (destination / file.path).chmod(0o444)
