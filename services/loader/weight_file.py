"""A weight file open for reading: past the page cache where its file system can, through it where it cannot."""

from __future__ import annotations

import contextlib
import enum
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from services.common.checkpoint.layout import ALIGNMENT
from services.common.errors import PreconditionFailed

AS_ASKED: Final = "as asked"
DIRECT_REMEDY: Final = "keep the store on a local file system that has them, such as ext4 or xfs"

_NOT_DIRECT: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})

Opener = Callable[[Path], int]


class ReadMode(enum.StrEnum):
    """How a weight file's bytes come from its disk, best first."""

    DIRECT = "direct"  # past the page cache
    BUFFERED = "buffered"  # through it
    MMAP = "mmap"  # not copied: engines map the file where it lies; only ever when asked for


def open_direct(path: Path) -> int:
    """A descriptor that bypasses the page cache; raises OSError where the file system has no such thing."""
    return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)


class WeightFile(NamedTuple):
    """Both ways of reading one file.

    Attributes:
        direct: Descriptor for direct reads; None where they are refused.
        buffered: Descriptor for the others.
        refusal: Why there are no direct reads; empty where there are.
    """

    direct: int | None
    buffered: int
    refusal: str

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, probed_at: int, asked: ReadMode | None = None, opener: Opener = open_direct
    ) -> Iterator[WeightFile]:
        """Opens the file and tries what can be had.

        Args:
            path: Of the file.
            probed_at: Where 4 KiB are read to see whether direct reads work; a multiple of 4 KiB.
            asked: The one mode that is wanted; None for the best that works.
            opener: Opens for direct reads.

        Raises:
            PreconditionFailed: Direct reads are asked for, and refused.
        """
        with contextlib.ExitStack() as scope:
            buffered = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            scope.callback(os.close, buffered)
            if asked not in {None, ReadMode.DIRECT}:
                yield cls(None, buffered, AS_ASKED)
                return
            direct = _Direct.probe(path, probed_at, opener)
            if direct.descriptor is not None:
                scope.callback(os.close, direct.descriptor)
            elif asked is ReadMode.DIRECT:
                raise PreconditionFailed(
                    f"direct reads of the store are refused: {direct.refusal}; {DIRECT_REMEDY}, or give "
                    "--read-mode auto",
                    reason="READ_MODE",
                )
            yield cls(direct.descriptor, buffered, direct.refusal)

    @property
    def mode(self) -> ReadMode:
        return ReadMode.BUFFERED if self.direct is None else ReadMode.DIRECT

    def read(self, window: memoryview, offset: int) -> int:
        """One read, direct if the system takes it so: after a short read the rest may not be aligned."""
        if self.direct is not None:
            try:
                return os.preadv(self.direct, [window], offset)
            except OSError as failure:
                if failure.errno not in _NOT_DIRECT:
                    raise
        return os.preadv(self.buffered, [window], offset)


class _Direct(NamedTuple):
    """A descriptor for direct reads, or why there is none."""

    descriptor: int | None
    refusal: str = ""

    @classmethod
    def probe(cls, path: Path, offset: int, opener: Opener) -> _Direct:
        """Opens and reads once: some systems open for direct reads and refuse the first one."""
        try:
            descriptor = opener(path)
        except OSError as failure:
            return cls(None, failure.strerror or "refused")
        try:
            with mmap.mmap(-1, ALIGNMENT) as page, memoryview(page) as window:
                os.preadv(descriptor, [window], offset)
        except OSError as failure:
            os.close(descriptor)
            return cls(None, failure.strerror or "refused")
        return cls(descriptor)
