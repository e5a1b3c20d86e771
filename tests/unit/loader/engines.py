"""Engines as the registry tells of them."""

from __future__ import annotations

from services.common.ids import ArtifactId, Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.registry.records import EngineRecord, GenerationRecord, GenerationState


def engine(boot_id: str, *states: GenerationState) -> EngineRecord:
    """One on the host that booted as `boot_id`, with a generation in each of the states."""
    generations = tuple(
        GenerationRecord(
            model=ModelName("m"),
            cohort=Cohort("stable"),
            revision=Revision(1),
            artifact_id=ArtifactId("a" * 64),
            state=state,
        )
        for state in states
    )
    return EngineRecord(
        id=ProcessId("engine-1"),
        instance_id=InstanceId("engine-1-0"),
        address="127.0.0.1:1",
        host="somewhere",
        boot_id=boot_id,
        start_time="2030-01-01T00:00:00+00:00",
        runtime_build="halogen/0",
        generations=generations,
    )
