"""ControlService on the wire: translates, decides nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from halogen.v1 import control_pb2 as pb
from halogen.v1 import control_pb2_grpc
from services.common.ids import ArtifactId, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.records import ArtifactState, EngineRecord, ProcessRecord, Statement
from services.gateway.artifacts import ArtifactOrder
from services.gateway.control import Control
from services.gateway.loader_client import Description
from services.gateway.operator_words import checked_cohort
from services.gateway.publications import PublishOrder
from services.gateway.qualifications import Qualified, QualifyOrder
from services.gateway.status import Status, StatusViews

Context = grpc.aio.ServicerContext[Any, Any]

_ARTIFACT_STATES = {
    ArtifactState.PENDING: pb.ARTIFACT_STATE_PENDING,
    ArtifactState.READY: pb.ARTIFACT_STATE_READY,
    ArtifactState.REJECTED: pb.ARTIFACT_STATE_REJECTED,
}


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Serves `control` and what `views` hold, as the gateway called `gateway_id`.

    `describe` reads the manifest and the signatures of an artifact that is in the loaders' store already.
    """

    def __init__(
        self,
        control: Control,
        views: StatusViews,
        gateway_id: ProcessId,
        describe: Callable[[ArtifactId], Awaitable[Description]],
    ) -> None:
        self._control = control
        self._describe = describe
        self._views = views
        self._gateway_id = gateway_id

    async def CheckArtifact(
        self, request: pb.CheckArtifactRequest, context: Context
    ) -> pb.CheckArtifactResponse:
        self._control.artifacts.check(request.model, request.manifest)
        return pb.CheckArtifactResponse()

    async def RegisterArtifact(
        self, request: pb.RegisterArtifactRequest, context: Context
    ) -> AsyncIterator[pb.RegisterArtifactResponse]:
        described = Description(request.manifest, request.signatures)
        if not request.manifest:
            described = await self._describe(ArtifactId(request.artifact_id))
        order = ArtifactOrder(
            model=request.model,
            manifest=described.manifest,
            signatures=described.signatures,
            reverify=request.reverify,
            who=request.who,
            why=request.why,
        )
        async with contextlib.aclosing(self._control.artifacts.register(order)) as steps:
            async for step in steps:
                yield pb.RegisterArtifactResponse(
                    artifact_id=step.artifact_id,
                    state=_ARTIFACT_STATES[step.state],
                    reason=step.reason,
                    done_bytes=step.done_bytes,
                    total_bytes=step.total_bytes,
                )

    async def PublishModel(
        self, request: pb.PublishModelRequest, context: Context
    ) -> pb.PublishModelResponse:
        expected = Revision(request.expected_revision) if request.HasField("expected_revision") else None
        order = PublishOrder(
            model=ModelName(request.model),
            cohort=checked_cohort(request.cohort),
            artifact_id=ArtifactId(request.artifact_id),
            expected_revision=expected,
            who=request.who,
            why=request.why,
        )
        return pb.PublishModelResponse(revision=await self._control.publications.publish(order))

    async def UnpublishModel(
        self, request: pb.UnpublishModelRequest, context: Context
    ) -> pb.UnpublishModelResponse:
        expected = Revision(request.expected_revision) if request.HasField("expected_revision") else None
        order = PublishOrder(
            model=ModelName(request.model),
            cohort=checked_cohort(request.cohort),
            artifact_id=None,
            expected_revision=expected,
            who=request.who,
            why=request.why,
        )
        return pb.UnpublishModelResponse(revision=await self._control.publications.publish(order))

    async def QualifyArtifact(
        self, request: pb.QualifyArtifactRequest, context: Context
    ) -> pb.QualifyArtifactResponse:
        order = QualifyOrder(
            artifact_id=ArtifactId(request.artifact_id),
            build=request.build,
            approved=request.approved if request.HasField("approved") else None,
            accuracy=request.accuracy if request.HasField("accuracy") else None,
            git_commit=request.git_commit,
            data_set=request.data_set,
            who=request.who,
            why=request.why,
        )
        qualified = await self._control.qualifications.qualify(order)
        return pb.QualifyArtifactResponse(qualification=_qualification(qualified))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(status=_status(self._views.read(), self._gateway_id))

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[pb.WatchStatusResponse]:
        async with contextlib.aclosing(self._views.changes()) as changes:
            async for status in changes:
                yield pb.WatchStatusResponse(status=_status(status, self._gateway_id))


def _status(status: Status, answered_by: ProcessId) -> pb.Status:
    return pb.Status(
        answered_by=answered_by,
        cohorts=[_cohort(status, key) for key in sorted(status.targets)],
        processes=[_process(role, record) for role, record in status.processes],
        artifacts=[
            pb.ArtifactStatus(
                model=model,
                artifact_id=artifact_id,
                state=_ARTIFACT_STATES[record.state],
                reason=record.reason,
            )
            for (model, artifact_id), record in sorted(status.artifacts.items())
        ],
        qualifications=[_qualification(qualified) for qualified in status.qualifications],
    )


def _cohort(status: Status, key: str) -> pb.CohortStatus:
    model, cohort = keys.split_cohort_key(key)
    target, serving = status.targets[key], status.serving.get(keys.serving(model, cohort))
    return pb.CohortStatus(
        model=model,
        cohort=cohort,
        desired_revision=target.revision,
        desired_artifact_id=target.artifact_id or "",
        serving_revision=serving.revision if serving else 0,
        serving_artifact_id=(serving and serving.artifact_id) or "",
        who=target.who,
        why=target.why,
    )


def _qualification(qualified: Qualified) -> pb.Qualification:
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
    )


def _generations(record: EngineRecord) -> list[pb.GenerationStatus]:
    return [
        pb.GenerationStatus(
            model=generation.model,
            cohort=generation.cohort,
            revision=generation.revision,
            artifact_id=generation.artifact_id,
            state=f"GENERATION_STATE_{generation.state}",
            error=generation.error,
        )
        for generation in record.generations
    ]
