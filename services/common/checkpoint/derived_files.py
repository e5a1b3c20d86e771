"""Weight files that were derived for kernels, in a folder of a cache: each under its artifact's id and its layout."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from services.common.checkpoint.cache_entry import CacheEntry, EntryKind
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.file_lock import LockKind, is_held, try_lock
from services.common.ids import ArtifactId


def derived_name(artifact_id: ArtifactId, layout: KernelLayout) -> str:
    """What the file is called, on a disk and in memory."""
    return f"{artifact_id}.{layout}"


class HeldDerived(NamedTuple):
    """A derived file that is in use: no loader evicts it meanwhile."""

    path: Path
    descriptor: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Holds it; raises FileNotFoundError where there is none."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try_lock(descriptor, LockKind.SHARED)
        return cls(path, descriptor)

    def release(self) -> None:
        """It was used until now."""
        now_ns = time.time_ns()  # finer than the file system's own clock
        os.utime(self.descriptor, ns=(now_ns, now_ns))
        os.close(self.descriptor)


class DerivedFiles:
    """The folder; whoever calls has the cache's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def hold(self, name: str) -> HeldDerived | None:
        """The file of that name, if there is one."""
        try:
            return HeldDerived.of(self.folder / name)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def remove_of(self, artifact_id: str) -> None:
        """Removes all that was made of an artifact."""
        for path in self.folder.glob(f"{artifact_id}.*"):
            path.unlink(missing_ok=True)

    def entries(self, artifacts: Iterable[CacheEntry], pins: Collection[str]) -> Iterator[CacheEntry]:
        """What lies there; none counts as used later than its artifact, where that is in the cache too.

        Args:
            artifacts: Those in the cache.
            pins: Names of artifacts that are to stay, and what was made of them with them.
        """
        used_at_s = {entry.name: entry.used_at_s for entry in artifacts}
        for path in self.folder.iterdir():
            found, artifact_id = path.stat(), path.name.partition(".")[0]
            yield CacheEntry(
                name=path.name,
                used_at_s=min(found.st_mtime, used_at_s.get(artifact_id, found.st_mtime)),
                sizes={found.st_ino: found.st_size},
                kind=EntryKind.DERIVED,
                is_pinned=artifact_id in pins,
                is_held=is_held(path),
            )
