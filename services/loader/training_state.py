"""What a training run leaves beside a model's weights: known by its names, left out of artifacts, and said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAME: Final = re.compile(
    r"(?:^|[./])(?:optimizers?|optimizer_states?|optim|exp_avg|exp_avg_sq|momentum_buffer|lr_schedulers?)(?:[./]|$)"
)
_FILES: Final = re.compile(
    r"(?:optimizer|scheduler|scaler|rng_state|training_args|trainer_state|random_states)[\w.-]*"
)


def is_training_state(name: str) -> bool:
    """Whether a tensor's name is that of an optimizer's or a scheduler's state."""
    return _NAME.search(name) is not None


def is_training_file(name: str) -> bool:
    """Whether a file of this name holds training state and no weights."""
    return _FILES.fullmatch(name) is not None


def describe(dropped: Mapping[str, int]) -> str:
    """One line that names what is left out, and its bytes."""
    names = sorted(dropped)
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"training state, {sum(dropped.values())} bytes: {listed}"
