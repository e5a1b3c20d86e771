"""Which kernels this CPU gets: the fastest that it and the installation allow."""

from __future__ import annotations

from typing import Literal

import structlog

from services.engine.kernels.cpu.native_kernels import NativeKernels, obstacle
from services.engine.kernels.portable import PortableKernels
from services.engine.kernels.protocol import Kernels

KernelChoice = Literal["auto", "portable"]

log = structlog.get_logger()


def choose_kernels(choice: KernelChoice, threads: int) -> Kernels:
    """Chooses, and says in one log line what and why."""
    against = "portable kernels were asked for" if choice == "portable" else obstacle()
    kernels: Kernels = PortableKernels() if against else NativeKernels(threads)
    log.info("kernels_chosen", kernels=kernels.name, threads=threads, not_native_because=against)
    return kernels
