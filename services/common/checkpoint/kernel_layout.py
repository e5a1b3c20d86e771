"""Layouts that kernels want matrices in, other than row after row."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

PANEL_ROWS: Final = 32
PAIR: Final = 2


class KernelLayout(NamedTuple):
    """A way for matrices to lie.

    Attributes:
        abi: Its name and version; what lies under one name lies the same for ever.
        isa: The family of instruction sets whose kernels read it.
    """

    abi: str
    isa: str

    def __str__(self) -> str:
        """As a part of a file's name."""
        return f"{self.abi}.{self.isa}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """What `str` gave; None where it is nothing of the kind."""
        abi, _, isa = text.partition(".")
        return cls(abi, isa) if abi and isa else None


PACKED32: Final = KernelLayout("packed32-v1", "x86")


def packed_shape(rows: int, columns: int) -> tuple[int, int, int, int]:
    """The shape of a matrix [rows, columns] in PACKED32: panels of 32 rows, in each of them pairs of columns.

    Element (i, j) is at [i // 32, j // 2, i % 32, j % 2]; what pads the last panel and the last pair is zero.
    """
    return -(-rows // PANEL_ROWS), -(-columns // PAIR), PANEL_ROWS, PAIR
