"""The native set, and whether it can run here."""

from __future__ import annotations

from typing import Final

from services.common.checkpoint.architecture import Architecture
from services.engine.kernels.cpu.library import load_library
from services.engine.kernels.cpu.native_llama import NativeLlama
from services.engine.kernels.cpu.team import Team
from services.engine.model.llama_weights import LlamaWeights

NAME: Final = "avx512_bf16"


def obstacle() -> str:
    """Why the native set cannot run here; empty if it can."""
    try:
        library = load_library()
    except OSError:
        return "the C library was not built: install again where there is a C compiler"
    except ImportError as stale:
        return str(stale)
    return "" if library.halogen_is_supported() else "this CPU lacks AVX-512 with BF16"


class NativeKernels:
    """See `Kernels`; only where `obstacle` finds none.

    Args:
        threads: Threads that a step uses.
    """

    name = NAME

    def __init__(self, threads: int) -> None:
        self._team = Team(threads)

    def decoder(self, architecture: Architecture, weights: LlamaWeights, max_positions: int) -> NativeLlama:
        return NativeLlama(architecture, weights, max_positions, self._team)
