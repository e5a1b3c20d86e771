"""A tensor of a source: read in pieces, so that its size never matters."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.finite import first_not_finite
from services.common.errors import CorruptData

PIECE_BYTES: Final = 4 << 20


class SourceTensor(Protocol):
    """What every source gives of a tensor.

    Attributes:
        dtype: What `pieces` are in.
        encoding: The source's name for its quantised blocks ("Q4_K"); empty where it is not quantised.
        stored_bytes: What it takes in the source.
        grain: Elements that are read together: a stretch has whole grains.
    """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def encoding(self) -> str: ...

    @property
    def stored_bytes(self) -> int: ...

    @property
    def grain(self) -> int: ...

    def pieces(self) -> Iterator[memoryview]:
        """Its elements, row-major and little-endian, whole elements at a time.

        A piece has about 4 MiB and is valid until the next is asked for.

        Raises:
            CorruptData: The source is shorter than it said, or a value is NaN or infinite.
        """

    def stretch(self, begin: int, end: int) -> Iterator[memoryview]:
        """Its elements from `begin` to `end`, multiples of the grain, as `pieces` gives all of them."""


class Table(NamedTuple):
    """The tensors of a source by name, and the training state that was left out: name to bytes."""

    tensors: dict[str, SourceTensor]
    dropped: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor that lies in a file as it is: `nbytes` at `offset`, row-major, little-endian.

    Attributes:
        crc32: Of these bytes, where the file has it.
    """

    path: Path
    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc32: int | None = None

    @property
    def encoding(self) -> str:
        return ""

    @property
    def stored_bytes(self) -> int:
        return self.nbytes

    @property
    def grain(self) -> int:
        return max(8 // self.dtype.bits, 1)

    def pieces(self) -> Iterator[memoryview]:
        pieces = read_range(self.path, self.name, self.offset, self.nbytes)
        if self.crc32 is not None:
            pieces = check_crc32(pieces, self.crc32, f"{self.path.name}: tensor {self.name}")
        return all_finite(self, pieces)

    def stretch(self, begin: int, end: int) -> Iterator[memoryview]:
        """As `SourceTensor.stretch`; the sum is of all bytes, and says nothing of some."""
        offset, nbytes = self.offset + self.dtype.nbytes((begin,)), self.dtype.nbytes((end - begin,))
        return all_finite(self, read_range(self.path, self.name, offset, nbytes), begin)


def check_crc32(pieces: Iterable[memoryview], expected: int, what: str) -> Iterator[memoryview]:
    """Passes pieces on, and raises CorruptData after the last if they are not those that the sum was made of."""
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
        yield piece
    if found != expected:
        raise CorruptData(
            f"{what} does not match its CRC-32; fetch the file again, or, if it was saved without such sums, save it "
            "anew after torch.serialization.set_crc32_options(True)"
        )


def all_finite(tensor: SourceTensor, pieces: Iterable[memoryview], before: int = 0) -> Iterator[memoryview]:
    """Passes a tensor's pieces on, each looked at: no engine can answer with a weight that is not finite.

    Args:
        tensor: Whose they are.
        pieces: Of the tensor, one after the other.
        before: How many elements come before the first piece.

    Raises:
        CorruptData: There is one; the message says where the first is.
    """
    for piece in pieces:
        at = first_not_finite(piece, tensor.dtype)
        if at is not None:
            position = [int(index) for index in np.unravel_index(before + at, tensor.shape)]
            raise CorruptData(
                f"tensor {tensor.name} holds NaN or infinity, the first at {position}, and no engine could answer "
                "with it; fetch the source again, or take another checkpoint of its training",
                reason="NOT_FINITE",
            )
        yield piece
        before += len(piece) * 8 // tensor.dtype.bits


def read_range(
    path: Path, name: str, offset: int, nbytes: int, piece_bytes: int = PIECE_BYTES
) -> Iterator[memoryview]:
    """A range of a file, `piece_bytes` at a time and the rest; a piece is valid until the next is asked for.

    Raises:
        CorruptData: The file ends before the range does.
    """
    buffer = memoryview(bytearray(min(piece_bytes, nbytes)))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for begin in range(offset, offset + nbytes, max(piece_bytes, 1)):
            piece = buffer[: offset + nbytes - begin]
            if not _fill(descriptor, piece, begin):
                raise CorruptData(f"{path.name}: ends inside tensor {name}; fetch it again")
            yield piece
    finally:
        os.close(descriptor)


def _fill(descriptor: int, piece: memoryview, offset: int) -> bool:
    while piece:
        count = os.preadv(descriptor, [piece], offset)
        if count == 0:
            return False
        piece, offset = piece[count:], offset + count
    return True
