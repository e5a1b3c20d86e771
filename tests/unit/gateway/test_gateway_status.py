"""What a gateway tells of a publish that is not served yet."""

from __future__ import annotations

from services.common.ids import ArtifactId, InstanceId, ProcessId, Revision
from services.common.registry.publish_records import Strategy
from services.common.registry.records import EngineRecord, GatewayRecord, ProcessRecord, Target
from services.gateway.status import Status

A = ArtifactId("a" * 64)
PROCESS = ProcessRecord(
    id=ProcessId("p"),
    instance_id=InstanceId("p-1"),
    address="127.0.0.1:1",
    host="h",
    start_time="2026-01-01T00:00:00Z",
).model_dump()


def waited_for(min_ready: int | None) -> tuple[str, ...]:
    """With one engine, which is still loading, and a gateway that has the text."""
    target = Target(
        revision=Revision(1), artifact_id=A, who="w", why="y", strategy=Strategy(min_ready=min_ready)
    )
    status = Status(
        targets={"targets/m/stable": target},
        serving={},
        processes=(
            ("engine", EngineRecord(**PROCESS, runtime_build="test/1")),
            ("gateway", GatewayRecord(**PROCESS, artifact_ids=(A,))),
        ),
        artifacts={},
        qualifications=(),
        commits={},
        is_stale=False,
    )
    return status.waiting_for("targets/m/stable")


def test_engines_that_are_yet_to_be_started_are_waited_for_in_words() -> None:
    """They have no names; how many there are, and what to do, is said.

    Fault injection: turns red when `Status.waiting_for` does not add the shortage.
    """
    remedy = "start more, or publish with a smaller --min-ready"
    assert ("p",) == waited_for(None) == waited_for(1)
    assert ("p", f"1 more engine (it has 1 of 2 engines that must be ready: {remedy})") == waited_for(2)
    assert ("p", f"4 more engines (it has 1 of 5 engines that must be ready: {remedy})") == waited_for(5)
