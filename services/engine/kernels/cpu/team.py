"""The threads that compute: the C library's own, since those of an OpenMP runtime wait by spinning."""

from __future__ import annotations

import weakref

import torch

from services.common.errors import Unavailable
from services.engine.kernels.cpu.library import InstructionSet, load_library


class Team:
    """A caller's thread and `threads - 1` of its own, which sleep between steps and end with this object.

    For one caller at a time.

    Args:
        instructions: Of the library that they run.
        threads: How many.

    Attributes:
        library: As above.
        address: For calls into it.
    """

    def __init__(self, instructions: InstructionSet, threads: int) -> None:
        self.library = load_library(instructions)
        address = self.library.halogen_open_team(threads)
        if not address:
            raise Unavailable(f"{threads} threads cannot be started: give --threads fewer")
        self.address: int = address
        weakref.finalize(self, self.library.halogen_close_team, address)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, target: int) -> None:
        """One product alone, for tests and measurements; see native/linear.h.

        Args:
            x: [rows, inner].
            weight: [columns, inner], of x's dtype.
            y: Where the result goes.
            target: 0 stores, 1 adds, 2 gates.
        """
        is_bf16 = x.dtype == torch.bfloat16
        self.library.halogen_linear(
            self.address,
            x.data_ptr(),
            weight.data_ptr(),
            y.data_ptr(),
            len(x),
            len(weight),
            x.shape[1],
            is_bf16,
            target,
        )

    def packed_linear(
        self, x: torch.Tensor, packed: torch.Tensor, y: torch.Tensor, columns: int, target: int
    ) -> None:
        """The same with a weight in PACKED32; `columns` are those of the product, gate's and up's together.

        Args:
            x: [rows, inner] of bfloat16.
            packed: [panels, pairs, 32, 2].
            y: Where the result goes: bfloat16 if gated, float32 otherwise.
            columns: Of the product.
            target: As above.
        """
        scratch = torch.empty(len(x) * (x.shape[1] + columns + 2), dtype=torch.bfloat16)
        self.library.halogen_packed_linear(
            self.address,
            x.data_ptr(),
            packed.data_ptr(),
            y.data_ptr(),
            len(x),
            columns,
            x.shape[1],
            target,
            scratch.data_ptr(),
        )

    def read(self, memory: torch.Tensor) -> None:
        """Reads contiguous memory as fast as the team can, and does nothing with it: for measurements."""
        self.library.halogen_read(self.address, memory.data_ptr(), memory.nbytes)
