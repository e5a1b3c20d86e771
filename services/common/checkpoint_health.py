"""What ``/healthz?check=checkpoint`` answers: which checkpoint serves, and how the last swap went. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

from services.common.health_check import Checked
from services.common.memory_guard import Bound
from services.common.registry.publish_records import Failure
from services.common.registry.records import ProgressRecord


class ModelHealth(NamedTuple):
    """How a model@cohort is served.

    Attributes:
        sequence_id: The revision that is applied; 0: none yet.
        is_served: Whether it can be asked for.
        swap_duration_ms: Of the last swap; None where there was none.
        swap_age_ms: How long ago that was.
        problem: Why it is not as the registry asks; empty where it is.
    """

    model: str
    cohort: str
    sequence_id: int
    is_served: bool
    swap_duration_ms: int | None
    swap_age_ms: int | None
    problem: str

    @classmethod
    def of(cls, progress: ProgressRecord, now: dt.datetime) -> Self:
        """Of one that an engine tells of."""
        is_served = progress.actual_revision > 0
        is_out = not is_served and progress.desired_revision > progress.applied_sequence_id
        return cls(
            model=progress.model,
            cohort=progress.cohort,
            sequence_id=progress.applied_sequence_id,
            is_served=is_served,
            swap_duration_ms=progress.last_swap_duration_ms,
            swap_age_ms=age_ms(progress.last_swap_time, now) if progress.last_swap_time else None,
            problem=problem_of(progress.last_error, is_out=is_out),
        )

    @property
    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "model": self.model,
            "cohort": self.cohort,
            "checkpoint_seq": self.sequence_id,
            "served": self.is_served,
            "last_swap_duration_ms": self.swap_duration_ms,
            "last_swap_age_ms": self.swap_age_ms,
            "problem": self.problem,
        }


def checkpoint_health(
    models: Sequence[ModelHealth], bounds: Iterable[Bound], *, missing: str, stale: str
) -> Checked:
    """Sound while something serves, however candidates fare; ok when nothing is to be looked at either.

    Args:
        models: All that are known.
        bounds: On this process's memory.
        missing: What this process lacks to be ready; empty when it is.
        stale: Why what it knows of the registry may be out of date; empty when it is current.
    """
    active = _latest([each for each in models if each.is_served])
    is_ok = not (missing or stale or any(each.problem for each in models))
    told = {
        "status": "ok" if is_ok else "degraded",
        "active_model": active.model if active else None,
        "checkpoint_seq": active.sequence_id if active else None,
        "last_swap_ms": active.swap_duration_ms if active else None,
        "memory_usage_percent": usage_percent(bounds),
        "last_swap_duration_ms": active.swap_duration_ms if active else None,
        "last_swap_age_ms": active.swap_age_ms if active else None,
        "missing": missing,
        "stale": stale,
        "models": [each.told for each in models],
    }
    return Checked(not missing, told)


def problem_of(failure: Failure | None, *, is_out: bool) -> str:
    """What is wrong with a model@cohort, and how that ends; empty where nothing is.

    Args:
        failure: Of what was published last, or is not as it should be.
        is_out: Whether it is published, and nothing of it serves.
    """
    if failure:
        told = f"{failure.stage}, {failure.reason}: {failure.message}"
        return f"{told} (this stands until a newer revision is applied: publish again, be it what serves, or roll back)"
    return (
        "it is published, and nothing of it serves now; who is waited for: halogen status" if is_out else ""
    )


def usage_percent(bounds: Iterable[Bound]) -> float:
    """What is held of the limit that is nearest, in percent with one digit behind the point."""
    return round(max((100 * each.held_bytes / each.limit_bytes for each in bounds), default=0.0), 1)


def age_ms(time: str, now: dt.datetime) -> int:
    """Milliseconds since an RFC 3339 time; 0 where somebody's clock runs ahead."""
    return max(0, round((now - dt.datetime.fromisoformat(time)).total_seconds() * 1000))


def _latest(served: Sequence[ModelHealth]) -> ModelHealth | None:
    """The one that was the last to get another checkpoint; of those that tell none the first."""
    swapped = [each for each in served if each.swap_age_ms is not None]
    return min(swapped, key=lambda each: each.swap_age_ms or 0, default=next(iter(served), None))
