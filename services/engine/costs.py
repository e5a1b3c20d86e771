"""What setting a request back costs on this machine: measured when the engine starts, and learned from its steps."""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from services.engine.preemption import CostModel
from services.engine.timeline import StepTimes

_COPIED_BYTES: Final = 4 << 20
_FIRST_S_PER_TOKEN: Final = (
    1e-3  # until a step has told: about what a model of 400 million parameters takes on two cores
)
_LEAST_TOKENS: Final = (
    32  # of prompts, in a step that tells: decodes beside fewer would count for more than these
)
_WEIGHT: Final = 0.1  # of the last step


class Costs:
    """Keeps the cost model up to date.

    Args:
        copy_bytes_per_s: As `measured_copy_bytes_per_s` has it.
    """

    def __init__(self, copy_bytes_per_s: float) -> None:
        self._copy_bytes_per_s = copy_bytes_per_s
        self._prefill_s_per_token: float | None = None

    @property
    def model(self) -> CostModel:
        known = self._prefill_s_per_token
        return CostModel(
            copy_bytes_per_s=self._copy_bytes_per_s,
            prefill_s_per_token=_FIRST_S_PER_TOKEN if known is None else known,
        )

    def hear(self, step: StepTimes) -> None:
        """A step has been computed."""
        if step.prompt_tokens < _LEAST_TOKENS:
            return
        s_per_token = (step.end_ns - step.begin_ns) / 1e9 / step.prompt_tokens
        known = self._prefill_s_per_token
        self._prefill_s_per_token = s_per_token if known is None else known + _WEIGHT * (s_per_token - known)


def measured_copy_bytes_per_s() -> float:
    """How fast this process copies memory by one thread; takes a few milliseconds."""
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    begin_s = time.perf_counter()
    np.copyto(target, source)
    return _COPIED_BYTES / max(time.perf_counter() - begin_s, 1e-9)
