"""The limit on the memory of a device that is no CPU."""

from __future__ import annotations

import torch

from services.common.memory_guard import Bound


def device_bounds(device: torch.device) -> tuple[Bound, ...]:
    """What the driver tells of a CUDA device; nothing for the CPU, whose memory is the host's."""
    if device.type != "cuda":
        return ()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return (Bound(f"device {device}", total_bytes, total_bytes - free_bytes),)
