"""The native sets, and whether they can run here."""

from __future__ import annotations

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.kernel_layout import PACKED32
from services.engine.kernels.cpu.library import INSTRUCTION_SETS, InstructionSet, load_library, runs_here
from services.engine.kernels.cpu.native_llama import NativeLlama
from services.engine.kernels.cpu.team import Team
from services.engine.kv_format import KvFormat
from services.engine.model.llama_weights import LlamaWeights


def obstacle(instructions: InstructionSet) -> str:
    """Why that set cannot run here; empty if it can."""
    try:
        library = load_library(instructions)
    except OSError:
        return "its C library was not built: install again where there is a C compiler that knows these instructions"
    except ImportError as stale:
        return str(stale)
    return "" if runs_here(library) else f"this CPU, or its system, lacks {INSTRUCTION_SETS[instructions]}"


class NativeKernels:
    """See `Kernels`; only where `obstacle` finds none.

    Args:
        instructions: What they are made of, and their name.
        threads: Threads that a step uses.
    """

    layout = PACKED32

    def __init__(self, instructions: InstructionSet, threads: int) -> None:
        self.name = instructions
        self._team = Team(instructions, threads)

    def decoder(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int
    ) -> NativeLlama:
        return NativeLlama(architecture, weights, kv, max_positions, self._team)
