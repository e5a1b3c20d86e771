"""An engine's progress as people read it."""

from __future__ import annotations

import pytest

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.progress_text import progress_line


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1 s"), (119_999, "1 min"), (7_200_000, "2 h"), (10**9, "11 d")],
)
def test_the_last_swap_is_told_with_its_age(age_ms: int, words: str) -> None:
    """In the largest unit of which there is a whole one."""
    progress = pb.CohortProgress(
        model="m",
        cohort="stable",
        applied_sequence_id=4,
        expected_next_id=5,
        last_swap_duration_ms=340,
        last_swap_age_ms=age_ms,
    )
    assert f"m@stable applied 4, next 5; swapped in 340 ms, {words} ago" == progress_line(progress)


def test_the_last_error_is_told_with_its_stage() -> None:
    """Beside what is applied."""
    failure = pb.Failure(stage=types_pb2.STAGE_WARM_UP, reason="NOT_FINITE", message="logits are not finite")
    progress = pb.CohortProgress(model="m", cohort="canary", expected_next_id=1, last_error=failure)
    words = "m@canary applied nothing yet, next 1; last error (WARM_UP, NOT_FINITE): logits are not finite"
    assert words == progress_line(progress)
