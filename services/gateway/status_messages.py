"""A status on the wire."""

from __future__ import annotations

import datetime as dt

from google.protobuf.timestamp_pb2 import Timestamp

from halogen.v1 import control_pb2 as pb
from services.common.checkpoint_health import age_ms
from services.common.ids import ProcessId
from services.common.registry import keys
from services.common.registry.qualification_records import Statement
from services.common.registry.records import ArtifactState, EngineRecord, ProcessRecord, ProgressRecord
from services.gateway.publish_messages import PUBLISH_STATES, failure_message, sync_status
from services.gateway.qualifications import Qualified
from services.gateway.status import Status

ARTIFACT_STATES = {
    ArtifactState.PENDING: pb.ARTIFACT_STATE_PENDING,
    ArtifactState.READY: pb.ARTIFACT_STATE_READY,
    ArtifactState.REJECTED: pb.ARTIFACT_STATE_REJECTED,
}


def status_message(status: Status, answered_by: ProcessId) -> pb.Status:
    return pb.Status(
        answered_by=answered_by,
        is_stale=status.is_stale,
        cohorts=[_cohort(status, key) for key in sorted(status.targets)],
        processes=[_process(role, record) for role, record in status.processes],
        artifacts=[
            pb.ArtifactStatus(
                model=model,
                artifact_id=artifact_id,
                state=ARTIFACT_STATES[record.state],
                reason=record.reason,
            )
            for (model, artifact_id), record in sorted(status.artifacts.items())
        ],
        qualifications=[qualification_message(qualified) for qualified in status.qualifications],
    )


def _cohort(status: Status, key: str) -> pb.CohortStatus:
    model, cohort = keys.split_cohort_key(key)
    target, serving = status.targets[key], status.serving.get(keys.serving(model, cohort))
    progress = status.progress(key)
    swap = progress.last_swap
    commit = status.commit(key)
    unpushed = commit and commit.registry_failure
    return pb.CohortStatus(
        model=model,
        cohort=cohort,
        desired_revision=target.revision,
        desired_artifact_id=target.artifact_id or "",
        serving_revision=serving.revision if serving else 0,
        serving_artifact_id=(serving and serving.artifact_id) or "",
        who=target.who,
        why=target.why,
        desired_state=PUBLISH_STATES[status.state(key)],
        waiting_for=status.waiting_for(key),
        last_error=failure_message(target.failure) if target.failure else None,
        applied_sequence_id=progress.applied,
        expected_next_id=progress.expected_next,
        last_swap_duration_ms=swap.last_swap_duration_ms if swap else None,
        last_swap_age_ms=_age_ms(swap) if swap else None,
        registry_sync_status=sync_status(commit),
        registry_failure=failure_message(unpushed) if unpushed else None,
    )


def qualification_message(qualified: Qualified) -> pb.Qualification:
    record = qualified.record
    return pb.Qualification(
        artifact_id=qualified.artifact_id,
        build=qualified.build,
        runtime_build=record.runtime_build,
        graph_root=record.graph_root,
        kernels={name: str(value) for name, value in record.kernels.items()},
        device={name: str(value) for name, value in record.device.items()},
        probes=[pb.ProbeResult(**probe.model_dump()) for probe in record.probes],
        statements=[_statement(statement) for statement in record.statements],
        approved=record.approved,
        accuracy=record.accuracy,
        git_commit=record.git_commit,
        data_set=record.data_set,
    )


def _statement(statement: Statement) -> pb.Statement:
    fields = statement.model_dump(exclude={"time"}, exclude_none=True)
    made = pb.Statement(**fields)
    made.time.FromJsonString(statement.time)
    return made


def _process(role: str, record: ProcessRecord) -> pb.ProcessStatus:
    started = Timestamp()
    started.FromJsonString(record.start_time)
    return pb.ProcessStatus(
        role=role,
        id=record.id,
        instance_id=record.instance_id,
        address=record.address,
        host=record.host,
        start_time=started,
        generations=_generations(record) if isinstance(record, EngineRecord) else (),
        artifact_ids=getattr(record, "artifact_ids", ()),
        placement=getattr(record, "placement", ""),
        reading=getattr(record, "reading", ""),
        http_address=record.http_address,
        term=getattr(record, "term", 0),
        text_failures=[
            pb.TextFailure(**failure.model_dump()) for failure in getattr(record, "text_failures", ())
        ],
        runtime_build=getattr(record, "runtime_build", ""),
        progress=[_progress(each) for each in record.progress] if isinstance(record, EngineRecord) else (),
        weights=getattr(record, "weights", None) or (),
    )


def _progress(record: ProgressRecord) -> pb.CohortProgress:
    told = record.model_dump(exclude={"state", "last_swap_time", "last_error"})
    return pb.CohortProgress(
        **told,
        state=f"GENERATION_STATE_{record.state or 'UNSPECIFIED'}",
        last_swap_age_ms=_age_ms(record) if record.last_swap_time else None,
        last_error=failure_message(record.last_error) if record.last_error else None,
    )


def _age_ms(swapped: ProgressRecord) -> int:
    return age_ms(swapped.last_swap_time, dt.datetime.now(dt.UTC))


def _generations(record: EngineRecord) -> list[pb.GenerationStatus]:
    return [
        pb.GenerationStatus(
            model=generation.model,
            cohort=generation.cohort,
            revision=generation.revision,
            artifact_id=generation.artifact_id,
            state=f"GENERATION_STATE_{generation.state}",
            error=generation.error,
            failure=failure_message(generation.failure) if generation.failure else None,
            layout=generation.layout,
        )
        for generation in record.generations
    ]
