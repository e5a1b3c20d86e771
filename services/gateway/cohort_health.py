"""How the model@cohorts that a gateway knows of are served. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from services.common.checkpoint_health import ModelHealth, age_ms, problem_of
from services.common.registry import keys
from services.gateway.status import Status


def cohort_healths(status: Status, ready: Mapping[str, bool], now: dt.datetime) -> list[ModelHealth]:
    """Of all that were published, by name.

    Args:
        status: What the registry says.
        ready: Each ``model@cohort``, and whether it can be asked for.
        now: The time.
    """
    return [_health(status, key, ready, now) for key in sorted(status.targets)]


def _health(status: Status, key: str, ready: Mapping[str, bool], now: dt.datetime) -> ModelHealth:
    model, cohort = keys.split_cohort_key(key)
    progress = status.progress(key)
    swap, target = progress.last_swap, status.targets[key]
    is_served = ready.get(f"{model}@{cohort}", False)
    return ModelHealth(
        model=model,
        cohort=cohort,
        sequence_id=progress.applied,
        is_served=is_served,
        swap_duration_ms=swap.last_swap_duration_ms if swap else None,
        swap_age_ms=age_ms(swap.last_swap_time, now) if swap else None,
        problem=problem_of(
            target.failure or progress.last_error, is_out=target.artifact_id is not None and not is_served
        ),
    )
