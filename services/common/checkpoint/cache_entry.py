"""What may be evicted from a cache as one, and which of it goes first."""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.file_lock import is_held


class EntryKind(enum.IntEnum):
    """What an entry is; of two used at the same time the lower goes first."""

    DERIVED = 1  # weights in a kernel's layout: made anew in seconds
    PARTIAL = 2  # a file on its way of which nobody may be bringing the rest
    ARTIFACT = 3


class CacheEntry(NamedTuple):
    """Something that is evicted as a whole.

    Attributes:
        name: The artifact's id, with its layout where it is derived; or the digest of a file on its way.
        used_at_s: Of the last use, in Unix seconds.
        sizes: Bytes by inode: artifacts may have files in common.
        is_held: Somebody is using it now.
    """

    name: str
    used_at_s: float
    sizes: Mapping[int, int]
    kind: EntryKind = EntryKind.ARTIFACT
    is_pinned: bool = False
    is_held: bool = False

    @property
    def is_artifact(self) -> bool:
        return self.kind is EntryKind.ARTIFACT

    @property
    def may_go(self) -> bool:
        return not (self.is_pinned or self.is_held)

    @property
    def size_bytes(self) -> int:
        """Of all its files, also those that others have too."""
        return sum(self.sizes.values())

    @classmethod
    def of_artifact(cls, directory: Path, *, is_pinned: bool) -> CacheEntry:
        found = [path.stat() for path in directory.iterdir()]
        manifest = directory / MANIFEST_NAME
        return cls(
            name=directory.name,
            used_at_s=manifest.stat().st_mtime,
            sizes={each.st_ino: each.st_size for each in found},
            is_pinned=is_pinned,
            is_held=is_held(manifest),
        )

    @classmethod
    def of_partial(cls, path: Path, name: str) -> CacheEntry:
        found = path.stat()
        return cls(
            name=name,
            used_at_s=found.st_mtime,
            sizes={found.st_ino: found.st_size},
            kind=EntryKind.PARTIAL,
            is_held=is_held(path),
        )


class Eviction(NamedTuple):
    """What is to go, and the bytes that are free afterwards."""

    victims: tuple[CacheEntry, ...]
    freed_bytes: int


def total_bytes(entries: Iterable[CacheEntry]) -> int:
    """Bytes of all files, each counted once."""
    sizes: dict[int, int] = {}
    for entry in entries:
        sizes.update(entry.sizes)
    return sum(sizes.values())


def plan_eviction(entries: tuple[CacheEntry, ...], excess_bytes: int) -> Eviction:
    """Those used longest ago, as many as it takes to free so many bytes, or all that may go if they are too few.

    What was derived of an artifact goes before it. A file that an entry which stays has too frees nothing.
    """
    links = collections.Counter(inode for entry in entries for inode in entry.sizes)
    victims: list[CacheEntry] = []
    freed_bytes = 0
    for entry in sorted(
        (each for each in entries if each.may_go), key=lambda each: (each.used_at_s, each.kind)
    ):
        if freed_bytes >= excess_bytes:
            break
        victims.append(entry)
        links.subtract(entry.sizes.keys())
        freed_bytes += sum(size for inode, size in entry.sizes.items() if not links[inode])
    return Eviction(tuple(victims), freed_bytes)
