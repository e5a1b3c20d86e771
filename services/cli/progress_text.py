"""How far an engine is with a model@cohort, in a line for people."""

from __future__ import annotations

from typing import Final

from halogen.v1 import control_pb2 as pb
from services.cli.outcome_text import stage_name

_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def progress_line(progress: pb.CohortProgress) -> str:
    """For example ``m@stable applied 4, next 5; swapped in 340 ms, 12 s ago``."""
    applied = progress.applied_sequence_id or "nothing yet"
    line = f"{progress.model}@{progress.cohort} applied {applied}, next {progress.expected_next_id}"
    if progress.HasField("last_swap_duration_ms"):
        line += f"; swapped in {progress.last_swap_duration_ms} ms, {_rough(progress.last_swap_age_ms)} ago"
    if progress.HasField("last_error"):
        failure = progress.last_error
        line += f"; last error ({stage_name(failure.stage)}, {failure.reason}): {failure.message}"
    return line


def _rough(time_ms: int) -> str:
    """A time in its largest whole unit."""
    return next((f"{time_ms // size} {unit}" for size, unit in _UNITS if time_ms >= size), f"{time_ms} ms")
