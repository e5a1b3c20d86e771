"""Artifacts as files on this host, wherever they come from: what is to be read is first brought here."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.manifest import ManifestFile
from services.common.errors import CorruptData
from services.common.ids import ArtifactId


class Listener(Protocol):
    """Hears how far the bringing of files is."""

    def expect(self, by_bytes: int) -> None:
        """So many bytes more are to come."""
        ...

    def advance(self, by_bytes: int) -> None:
        """So many of them are here."""
        ...


class Nobody:
    """A listener who does not mind."""

    def expect(self, by_bytes: int) -> None: ...

    def advance(self, by_bytes: int) -> None: ...


NOBODY: Final = Nobody()


class Artifacts(Protocol):
    """Where a loader has its artifacts from."""

    @property
    def is_reachable(self) -> bool:
        """Whether anything can be had; waits for the disk."""
        ...

    def opened(self, artifact_id: ArtifactId) -> AbstractAsyncContextManager[StoredArtifact]:
        """The artifact, its manifest verified against its id, for the scope; its files may be yet to come.

        Raises:
            NotFound: There is no such artifact.
            InvalidRequest: It is not an id.
            CorruptData: The manifest is not the one that the id names.
            Unavailable: Nobody can say: the store is not there.
        """
        ...

    async def bring(self, stored: StoredArtifact, file: ManifestFile, listener: Listener) -> None:
        """Returns once a file of an opened artifact is here; of weights that were here, no block is verified anew.

        Args:
            stored: What `opened` gave.
            file: One of its files.
            listener: Hears how many bytes are to come, if any are, and that they come.

        Raises:
            CorruptData: What came is not what the manifest names.
            Overloaded: There is no room for it.
            Unavailable: The store is not there.
            PreconditionFailed: The file changes in the store again and again.
            HalogenError: As the store says.
        """
        ...

    async def signatures(self, stored: StoredArtifact) -> bytes:
        """The content of an opened artifact's file of signatures; empty where there is none."""
        ...

    async def mend(self, artifact_id: ArtifactId, fault: CorruptData) -> bool:
        """Throws away what is wrong here and may be right in the store; tells whether another try may help."""
        ...
