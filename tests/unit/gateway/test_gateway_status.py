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


def waited_for(min_ready: int | None, serves: str = "m") -> tuple[str, ...]:
    """With one engine, which is still loading, and a gateway that has the text."""
    target = Target(
        revision=Revision(1), artifact_id=A, who="w", why="y", strategy=Strategy(min_ready=min_ready)
    )
    status = Status(
        targets={"targets/m/stable": target},
        serving={},
        processes=(
            ("engine", EngineRecord(**PROCESS, runtime_build="test/1", serves=(serves,))),
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


def test_a_model_that_no_engine_is_for_is_said_to_have_none() -> None:
    """Nothing will ever come of it by itself; what to do is said, whether the publish names a number or not.

    Fault injection: turns red when `Status.waiting_for` takes silence for no engine at all.
    """
    has = "no engine that is there serves this model@cohort: start one that does, or change what one is for, --serves"
    assert (f"1 more engine ({has})",) == waited_for(None, "other") == waited_for(1, "other@stable")
    assert (f"2 more engines ({has})",) == waited_for(2, "m@canary")
