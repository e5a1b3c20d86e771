"""How far an engine says that it is with a model@cohort, and how long a swap took."""

from __future__ import annotations

from typing import Final

from structlog.testing import capture_logs

from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import GenerationRecord, ProgressRecord, Serving, Target
from services.common.registry.records import GenerationState as State
from services.engine.assignments import Assignments, ServedPairs
from services.engine.progress import Moment, Progress
from tests.unit.engine.generations_alone import POLICY

A, B = ArtifactId("a" * 64), ArtifactId("b" * 64)
KEY: Final = "targets/m/stable"
BAD: Final = Failure(stage=Stage.GRAPH, reason="GRAPH_MISMATCH", message="another model")


class Watched:
    """A progress of one model, what it was told, and a clock."""

    def __init__(self) -> None:
        self.assignments = Assignments(ServedPairs.parse(()), POLICY)
        self.progress = Progress(self.assignments)
        self.now_s = 0.0
        self.serving: dict[str, Serving] = {}

    def target(self, revision: int, artifact: ArtifactId | None, failure: Failure | None = None) -> None:
        target = Target(revision=Revision(revision), artifact_id=artifact, who="w", why="y", failure=failure)
        self.assignments.hear({KEY: target}, self.serving)

    def serve(self, revision: int, artifact: ArtifactId | None) -> None:
        served = Serving(revision=Revision(revision), artifact_id=artifact)
        self.serving = {"serving/m/stable": served}
        self.assignments.hear({}, self.serving)

    def holds(
        self, *held: tuple[int, ArtifactId, State], at_s: float, failure: Failure | None = None
    ) -> ProgressRecord:
        """What is told once that has been noted."""
        self.progress.note(
            [
                GenerationRecord(
                    model=ModelName("m"),
                    cohort=Cohort.STABLE,
                    revision=Revision(revision),
                    artifact_id=artifact,
                    state=state,
                    failure=failure if state is State.FAILED else None,
                )
                for revision, artifact, state in held
            ],
            Moment(at_s, f"2026-01-01T00:00:{at_s:06.3f}+00:00"),
        )
        [record] = self.progress.records
        return record


def serving_a() -> Watched:
    """Revision 1 has been applied, at 2 s."""
    watched = Watched()
    watched.target(1, A)
    watched.holds(at_s=1.0)
    watched.serve(1, A)
    watched.holds((1, A, State.ACTIVE), at_s=2.0)
    return watched


def test_a_swap_lasts_from_the_publish_to_the_commit() -> None:
    """ACTIVE alone applies nothing: gateways must use it.

    Fault injection: turns red when a revision is applied before serving/ names it.
    """
    watched = serving_a()
    watched.target(2, B)
    assert (1, 2) == _ids(watched.holds((1, A, State.ACTIVE), (2, B, State.FETCHING), at_s=10.0))
    ready = watched.holds((1, A, State.ACTIVE), (2, B, State.ACTIVE), at_s=10.3)
    assert ((1, 2), 2, 1_000) == (_ids(ready), ready.actual_revision, ready.last_swap_duration_ms)
    watched.serve(2, B)
    done = watched.holds((1, A, State.DRAINING), (2, B, State.ACTIVE), at_s=10.5)
    assert ((2, 3), 500) == (_ids(done), done.last_swap_duration_ms)
    assert "2026-01-01T00:00:10.500+00:00" == done.last_swap_time


def _ids(record: ProgressRecord) -> tuple[int, int]:
    return record.applied_sequence_id, record.expected_next_id


def test_a_swap_is_logged_when_gateways_use_what_came() -> None:
    """Old and new, once; a candidate that is ACTIVE and never committed is none, nor is what was served all along.

    Fault injection: turns red when `_tell_swap` is called for what is ACTIVE, or does not ask what was found.
    """
    with capture_logs() as logs:
        watched = serving_a()
        watched.target(2, B)
        watched.holds((1, A, State.ACTIVE), (2, B, State.ACTIVE), at_s=3.0)
        watched.target(3, A)
        watched.serve(3, A)
        watched.holds((3, A, State.ACTIVE), (2, B, State.DRAINING), at_s=4.0)
        watched.target(4, B)
        watched.serve(4, B)
        for at_s in (5.0, 6.0):
            watched.holds((3, A, State.DRAINING), (4, B, State.ACTIVE), at_s=at_s)
        started_anew = Watched()
        started_anew.serve(4, B)
        started_anew.holds(at_s=7.0)
        started_anew.holds((4, B, State.ACTIVE), at_s=8.0)
    swaps = [
        (each["seq"], each["old"], each["new"]) for each in logs if each["event"] == "atomic_swap_commit"
    ]
    assert [(1, "", A), (4, A, B)] == swaps


def test_the_same_artifact_again_is_applied_and_no_swap() -> None:
    """Revision and next move on, duration and time stay."""
    watched = serving_a()
    watched.target(2, A)
    watched.serve(2, A)
    again = watched.holds((2, A, State.ACTIVE), at_s=20.0)
    assert ((2, 3), 1_000) == (_ids(again), again.last_swap_duration_ms)
    assert again.last_swap_time.endswith(":02.000+00:00")


def test_a_publish_that_a_newer_one_follows_is_measured_from_its_own_beginning() -> None:
    """Its commit may be heard after the next target.

    Fault injection: turns red when only the last beginning is remembered.
    """
    watched = serving_a()
    for revision, at_s in ((2, 10.0), (3, 12.0)):
        watched.target(revision, B if revision == 2 else A)
        watched.holds((1, A, State.ACTIVE), (2, B, State.ACTIVE), at_s=at_s)
    watched.serve(2, B)
    done = watched.holds((2, B, State.ACTIVE), (3, A, State.ACTIVE), at_s=12.5)
    assert ((2, 3), 2_500) == (_ids(done), done.last_swap_duration_ms)


def test_a_failure_is_told_until_something_newer_is_applied() -> None:
    """Also when what failed is held no more.

    Fault injection: turns red when the failure goes with the generation.
    """
    watched = serving_a()
    watched.target(2, B)
    failed = watched.holds((1, A, State.ACTIVE), (2, B, State.FAILED), at_s=3.0, failure=BAD)
    assert (BAD, State.FAILED, 1) == (failed.last_error, failed.state, failed.actual_revision)
    watched.target(2, B, BAD)
    gone = watched.holds((1, A, State.ACTIVE), at_s=4.0)
    assert (BAD, (1, 3)) == (gone.last_error, _ids(gone))
    watched.target(3, A)
    watched.serve(3, A)
    assert watched.holds((3, A, State.ACTIVE), at_s=5.0).last_error is None


def test_every_change_of_state_is_counted() -> None:
    """Its version tells apart what looks the same."""
    watched = serving_a()
    before = watched.holds((1, A, State.ACTIVE), at_s=3.0).state_version
    watched.target(2, B)
    for state in (State.FETCHING, State.FETCHING, State.VERIFYING, State.FAILED):
        watched.holds((1, A, State.ACTIVE), (2, B, state), at_s=4.0, failure=BAD)
    after = watched.holds((1, A, State.ACTIVE), at_s=5.0)
    assert (State.ACTIVE, before + 4) == (after.state, after.state_version)


def test_what_is_unpublished_is_applied_as_it_is_heard() -> None:
    """Nothing serves, and no swap is told of."""
    watched = serving_a()
    watched.target(2, None)
    watched.serve(2, None)
    none = watched.holds((1, A, State.DRAINING), at_s=9.0)
    assert ((2, 3), 0, 1_000) == (_ids(none), none.actual_revision, none.last_swap_duration_ms)


def test_what_only_others_serve_is_not_applied_here() -> None:
    """Committed without this engine, which is still loading; it applies it when it is ACTIVE.

    Fault injection: turns red when it is not asked whether the artifact is ACTIVE here.
    """
    watched = serving_a()
    watched.target(2, B)
    watched.serve(2, B)
    assert (1, 2) == _ids(watched.holds((1, A, State.ACTIVE), (2, B, State.WARMING), at_s=3.0))
    assert (2, 3) == _ids(watched.holds((1, A, State.ACTIVE), (2, B, State.ACTIVE), at_s=4.0))


def test_a_revision_with_two_artifacts_is_an_error_until_a_newer_one_comes() -> None:
    """Operators see it where they look for errors; what stood first serves on.

    Fault injection: turns red when `Progress._record` does not ask `Assignments.conflict`, or that for newer revisions.
    """
    it = serving_a()
    it.target(1, B)
    told = it.holds((1, A, State.ACTIVE), at_s=5).last_error
    assert told
    assert (Stage.COMMIT, "REVISION_CONFLICT") == (told.stage, told.reason)
    assert f"revision 1 was said to name {B}" in told.message
    it.target(2, B)
    assert it.holds((1, A, State.ACTIVE), at_s=6).last_error is None
