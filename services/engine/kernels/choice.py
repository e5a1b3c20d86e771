"""Which kernels this CPU gets: the fastest that it and the installation allow."""

from __future__ import annotations

from typing import Literal

import structlog

from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels

KernelChoice = Literal["auto", "portable"]

log = structlog.get_logger()


def choose_kernels(choice: KernelChoice, threads: int) -> Kernels:
    """Chooses, and says in one log line what and why."""
    kernels = PortableKernels()
    log.info("kernels_chosen", kernels=kernels.name, threads=threads, choice=choice)
    return kernels
