"""How artifacts that publishes name are taken into service."""

from __future__ import annotations

import pytest

from services.common.ids import ArtifactId, Revision
from services.common.registry.publish_records import Failure, Stage, Strategy, SwapMode
from services.common.registry.records import Serving, Target
from services.engine.assignments import Assignments, ServedPairs
from services.engine.swap_policy import SwapPolicy

OWN = SwapPolicy(SwapMode.ATOMIC_SWAP, timeout_s=600, fallback_on_failure=True, memory_guard_ratio=0.85)
TIGHT = Strategy(timeout_ms=500, memory_guard_ratio=0.01)
ARTIFACT, OTHER = ArtifactId("a"), ArtifactId("b")


def target(revision: int, artifact_id: ArtifactId, *, has_failed: bool = False) -> Target:
    failure = Failure(stage=Stage.GUARD, reason="MEMORY_GUARD", message="short")
    return Target(
        revision=Revision(revision),
        artifact_id=artifact_id,
        who="ada",
        why="tight",
        strategy=TIGHT,
        failure=failure if has_failed else None,
    )


@pytest.mark.parametrize("has_failed", [False, True])
def test_an_engine_comes_back_to_what_is_served_as_it_has_it_itself(has_failed: bool) -> None:
    """A publish bounds its own swap: one that leaves no memory, or no time, keeps no engine from what gateways route to.

    Fault injection: turns red when `once_served` gives the publish's policy back.
    """
    assignments = Assignments(ServedPairs.parse(()), OWN)
    assignments.hear({"targets/m/stable": target(2, ARTIFACT, has_failed=has_failed)}, {})
    assert OWN._replace(timeout_s=0.5, memory_guard_ratio=0.01) == assignments.policy(ARTIFACT)
    served = Serving(revision=Revision(1), artifact_id=ARTIFACT)
    assignments.hear({}, {"serving/m/stable": served})
    assert OWN == assignments.policy(ARTIFACT)
    assignments.hear({"targets/m/stable": target(3, OTHER)}, {})
    assert 0.01 == assignments.policy(OTHER).memory_guard_ratio
