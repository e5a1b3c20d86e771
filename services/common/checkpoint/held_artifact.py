"""An artifact in a cache that is in use: no loader evicts it meanwhile."""

from __future__ import annotations

import os
import time
from typing import NamedTuple, Self

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.file_lock import LockKind, try_lock


class HeldArtifact(NamedTuple):
    """The artifact, and the descriptor of its manifest whose lock says so."""

    stored: StoredArtifact
    descriptor: int

    @classmethod
    def of(cls, stored: StoredArtifact) -> Self:
        """Holds it; nobody is evicting it now."""
        descriptor = os.open(stored.directory / MANIFEST_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try_lock(descriptor, LockKind.SHARED)
        held = cls(stored, descriptor)
        held._touch()
        return held

    def release(self) -> None:
        self._touch()
        os.close(self.descriptor)

    def _touch(self) -> None:
        """It was used now."""
        now_ns = time.time_ns()  # finer than the file system's own clock
        os.utime(self.descriptor, ns=(now_ns, now_ns))
