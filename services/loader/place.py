"""A place for weights: what can reserve room for one file, and what it gives."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from services.loader.file_stamp import FileStamp
from services.loader.shared_directory import SharedDirectory


class PlaceKind(enum.StrEnum):
    """Kinds of places, in the order in which they are tried."""

    TMPFS = "tmpfs"
    DEV_SHM = "dev_shm"
    MEMFD = "memfd"
    FILE = "file"

    @property
    def is_memory(self) -> bool:
        return self is not PlaceKind.FILE

    @property
    def is_shared(self) -> bool:
        """Whether another loader can find what lies there."""
        return self is not PlaceKind.MEMFD


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A finished file: immutable, and there until it is released, or let go of and then evicted.

    Attributes:
        mapped_path: What an engine on this host opens and maps.
        let_go: Leaves the file, for whoever comes for it before somebody needs its room.
        release: Gives the name up; whoever still maps the file keeps its pages.
        vouch: All of it has just been verified.
        stamp: What it was when it was verified, if others may write to it.
        is_vouched: Whether this process has verified it, and nobody has touched it since; no file on a disk is, which
            may spoil.
    """

    kind: PlaceKind
    mapped_path: str
    size_bytes: int
    let_go: Callable[[], None]
    release: Callable[[], None]
    vouch: Callable[[], None] = lambda: None
    is_vouched: Callable[[], bool] = lambda: False
    stamp: FileStamp | None = None

    @property
    def is_there(self) -> bool:
        """Whether the path still names it, as it was verified."""
        path = Path(self.mapped_path)
        return path.exists() if self.stamp is None else self.stamp.is_of(path)

    def closing(self, close: Callable[[], None]) -> Holding:
        """The same, which calls `close` before it gives anything up."""
        let_go, release = _both(close, self.let_go), _both(close, self.release)
        return dataclasses.replace(self, let_go=let_go, release=release)


class Slot(Protocol):
    """Room for one file that is being written; ends by `publish`, or `discard`.

    Attributes:
        has_room: Whether all its room is taken already; else touching its pages takes it.
    """

    has_room: bool
    kind: PlaceKind
    descriptor: int
    size_bytes: int

    def publish(self) -> Holding:
        """Makes the file immutable and gives it its name; raises OSError before it has one, and is then to be discarded."""
        ...

    def discard(self) -> None:
        """Leaves nothing behind."""
        ...


class Place(Protocol):
    """Somewhere weights can lie."""

    kind: PlaceKind

    def reserve(self, name: str, size_bytes: int) -> Slot:
        """Room for all of a file, for certain; its maker has the name's turn where the place is shared.

        Raises:
            OSError: There is none, or no such place; `strerror` says why.
        """
        ...

    def shared(self, *, make: bool) -> SharedDirectory | None:
        """What it shares with other loaders of this host, if it does.

        Args:
            make: Make the directory if it is not there.

        Raises:
            OSError: There is no such place, or no directory.
        """
        ...

    def close(self) -> None:
        """Gives up whatever this loader has there."""
        ...


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            first()
        finally:
            second()

    return run
