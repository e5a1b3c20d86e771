"""A place for weights: what can reserve room for one file, and what it gives."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Protocol

DIRECTORY_PREFIX = "halogen-loader-"  # of the directory that one running loader owns in a place


class PlaceKind(enum.StrEnum):
    """Kinds of places, in the order in which they are tried."""

    TMPFS = "tmpfs"
    DEV_SHM = "dev_shm"
    MEMFD = "memfd"
    FILE = "file"

    @property
    def is_memory(self) -> bool:
        return self is not PlaceKind.FILE


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A finished file: immutable, and there until it is released.

    Attributes:
        mapped_path: What an engine on this host opens and maps.
        release: Gives the name up; whoever still maps the file keeps its pages.
    """

    kind: PlaceKind
    mapped_path: str
    size_bytes: int
    release: Callable[[], None]


class Slot(Protocol):
    """Room for one file that is being written; ends by one call of `publish` or `discard`."""

    kind: PlaceKind
    descriptor: int
    size_bytes: int

    def publish(self) -> Holding:
        """Makes the file immutable and gives it its name."""
        ...

    def discard(self) -> None:
        """Leaves nothing behind."""
        ...


class Place(Protocol):
    """Somewhere weights can lie."""

    kind: PlaceKind

    def reserve(self, name: str, size_bytes: int) -> Slot:
        """Room for all of a file, for certain.

        Raises:
            OSError: There is none, or no such place; `strerror` says why.
        """
        ...

    def close(self) -> None:
        """Removes whatever of this loader is still there."""
        ...
