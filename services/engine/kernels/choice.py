"""Which kernels this CPU gets: the fastest that it and the installation allow."""

from __future__ import annotations

from typing import Literal

import structlog

from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels

KernelChoice = Literal["auto", "portable"]

log = structlog.get_logger()


def available_kernels(threads: int) -> dict[str, Kernels]:  # noqa: ARG001  # native sets take it
    """Every set that can run here, by name, the fastest first."""
    portable = PortableKernels()
    return {portable.name: portable}


def choose_kernels(choice: KernelChoice, threads: int) -> Kernels:
    """Chooses, and says in one log line what and why."""
    sets = available_kernels(threads)
    name = next(iter(sets)) if choice == "auto" else choice
    log.info("kernels_chosen", kernels=name, threads=threads, available=list(sets))
    return sets[name]
