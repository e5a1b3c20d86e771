"""How far a cohort is, by what its engines tell."""

from __future__ import annotations

from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry.publish_records import Failure, PublishState, Stage
from services.common.registry.records import GenerationState, ProgressRecord, Serving, Target
from services.gateway.cohort_progress import CohortProgress

A = ArtifactId("a" * 64)
BAD = Failure(stage=Stage.GUARD, reason="MEMORY_GUARD", message="too large")


def engine(
    *, swap_ms: int | None = None, swapped: str = "", failure: Failure | None = None
) -> ProgressRecord:
    return ProgressRecord(
        model=ModelName("m"),
        cohort=Cohort.STABLE,
        desired_revision=Revision(3),
        actual_revision=Revision(2),
        state=GenerationState.ACTIVE,
        state_version=1,
        applied_sequence_id=Revision(2),
        expected_next_id=Revision(3),
        last_swap_duration_ms=swap_ms,
        last_swap_time=swapped,
        last_error=failure,
    )


def progress(state: PublishState, *engines: ProgressRecord, served: int = 2) -> CohortProgress:
    return CohortProgress.of(
        Target(revision=Revision(3), artifact_id=A, who="w", why="y"),
        state,
        serving=Serving(revision=Revision(served), artifact_id=A) if served else None,
        last=Revision(9),  # of the model: another cohort's
        engines=engines,
    )


def test_what_comes_next_is_the_pending_publish_or_the_models_next() -> None:
    """Revisions are the model's, so another cohort's count."""
    pending, failed = progress(PublishState.PENDING), progress(PublishState.FAILED)
    assert [(2, 3), (2, 10)] == [(each.applied, each.expected_next) for each in (pending, failed)]
    assert 0 == progress(PublishState.PENDING, served=0).applied


def test_the_last_swap_is_that_of_the_engine_that_was_last() -> None:
    """Those that have made none are passed over."""
    early = engine(swap_ms=900, swapped="2026-01-01T00:00:01+00:00")
    late = engine(swap_ms=200, swapped="2026-01-01T00:00:02+00:00")
    assert late is progress(PublishState.APPLIED, engine(), late, early).last_swap
    assert progress(PublishState.APPLIED, engine()).last_swap is None


def test_an_engine_that_has_failed_is_heard_among_others() -> None:
    """Its failure is the cohort's."""
    assert BAD == progress(PublishState.PENDING, engine(), engine(failure=BAD)).last_error
