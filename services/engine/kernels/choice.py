"""Which kernels this CPU gets: the fastest that it and the installation allow, unless one set is asked for."""

from __future__ import annotations

from typing import Final, Literal

import structlog

from services.common.errors import Unsupported
from services.engine.kernels.cpu.library import INSTRUCTION_SETS, InstructionSet
from services.engine.kernels.cpu.native_kernels import NativeKernels, obstacle
from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels

KernelChoice = Literal["auto", "portable"] | InstructionSet

_FASTEST_FIRST: Final = tuple(INSTRUCTION_SETS)

log = structlog.get_logger()


def choose_kernels(choice: KernelChoice, threads: int) -> Kernels:
    """Chooses, and says in one log line what and why.

    Args:
        choice: auto takes the fastest; anything else is taken or refused.
        threads: Threads that a step uses.

    Raises:
        Unsupported: What was asked for cannot run here.
    """
    if choice == "auto":
        return _fastest(threads)
    check_choice(choice)
    return _taken(PortableKernels() if choice == "portable" else NativeKernels(choice, threads), threads)


def check_choice(choice: KernelChoice) -> None:
    """Raises Unsupported where `choose_kernels` would."""
    if choice == "auto":
        return
    if choice != "portable" and (against := obstacle(choice)):
        raise Unsupported(
            f"kernels {choice} cannot run here: {against}; auto takes the fastest that can",
            reason="KERNELS_UNSUPPORTED",
        )


def _fastest(threads: int) -> Kernels:
    against: list[str] = []
    for instructions in _FASTEST_FIRST:
        if not (why := obstacle(instructions)):
            return _taken(NativeKernels(instructions, threads), threads, against)
        against.append(f"{instructions}: {why}")
    return _taken(PortableKernels(), threads, against)


def _taken(kernels: Kernels, threads: int, against: list[str] | None = None) -> Kernels:
    reasons = "; ".join(against) if against is not None else "asked for"
    log.info("kernels_chosen", kernels=kernels.name, threads=threads, not_faster_because=reasons)
    return kernels
