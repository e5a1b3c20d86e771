"""ControlService on the wire: translates, decides nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from halogen.v1 import control_pb2 as pb
from halogen.v1 import control_pb2_grpc
from services.common.ids import ArtifactId, ModelName, ProcessId, Revision
from services.gateway.artifacts import ArtifactOrder, check_signatures
from services.gateway.control import Control
from services.gateway.history import History
from services.gateway.loader_client import Description
from services.gateway.operator_words import attested, checked_cohort
from services.gateway.publication_plan import PublishOrder
from services.gateway.publish_messages import (
    entry_message,
    outcome_message,
    pushed_message,
    strategy_of,
)
from services.gateway.pushes import PushOrder
from services.gateway.qualifications import QualifyOrder
from services.gateway.rollbacks import RollbackOrder
from services.gateway.status import StatusViews
from services.gateway.status_messages import ARTIFACT_STATES, qualification_message, status_message

Context = grpc.aio.ServicerContext[Any, Any]


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Serves `control`, `history`, and what `views` hold, as the gateway called `gateway_id`.

    `describe` reads the manifest and the signatures of an artifact that is in the loaders' store already.
    """

    def __init__(
        self,
        control: Control,
        views: StatusViews,
        history: History,
        gateway_id: ProcessId,
        describe: Callable[[ArtifactId], Awaitable[Description]],
    ) -> None:
        self._control = control
        self._describe = describe
        self._views = views
        self._history = history
        self._gateway_id = gateway_id

    async def CheckArtifact(
        self, request: pb.CheckArtifactRequest, context: Context
    ) -> pb.CheckArtifactResponse:
        self._control.artifacts.check(request.model, request.manifest)
        return pb.CheckArtifactResponse()

    async def RegisterArtifact(
        self, request: pb.RegisterArtifactRequest, context: Context
    ) -> AsyncIterator[pb.RegisterArtifactResponse]:
        check_signatures(request.signatures)
        described = Description(request.manifest, request.signatures)
        if not request.manifest:
            described = await self._describe(ArtifactId(request.artifact_id))
        order = ArtifactOrder(
            model=request.model,
            manifest=described.manifest,
            signatures=described.signatures,
            reverify=request.reverify,
            verify_only=request.verify_only,
            who=attested(request.who),
            why=request.why,
        )
        async with contextlib.aclosing(self._control.artifacts.register(order)) as steps:
            async for step in steps:
                yield pb.RegisterArtifactResponse(
                    artifact_id=step.artifact_id,
                    state=ARTIFACT_STATES[step.state],
                    reason=step.reason,
                    done_bytes=step.done_bytes,
                    total_bytes=step.total_bytes,
                )

    async def PublishModel(
        self, request: pb.PublishModelRequest, context: Context
    ) -> pb.PublishModelResponse:
        order = PublishOrder(
            model=ModelName(request.model),
            cohort=checked_cohort(request.cohort),
            artifact_id=ArtifactId(request.artifact_id),
            expected_revision=_expected(request),
            who=attested(request.who),
            why=request.why,
            strategy=strategy_of(request.strategy),
        )
        return pb.PublishModelResponse(revision=await self._control.publications.publish(order))

    async def UnpublishModel(
        self, request: pb.UnpublishModelRequest, context: Context
    ) -> pb.UnpublishModelResponse:
        revision = await self._control.publications.publish(_naming_none(request))
        return pb.UnpublishModelResponse(revision=revision)

    async def RollbackModel(
        self, request: pb.RollbackModelRequest, context: Context
    ) -> pb.RollbackModelResponse:
        order = RollbackOrder(
            model=ModelName(request.model),
            cohort=checked_cohort(request.cohort),
            to_revision=Revision(request.to_revision) if request.HasField("to_revision") else None,
            expected_revision=_expected(request),
            who=attested(request.who),
            why=request.why,
            strategy=strategy_of(request.strategy),
        )
        done = await self._control.rollbacks.roll_back(order)
        return pb.RollbackModelResponse(revision=done.revision, artifact_id=done.artifact_id)

    async def AbortPublish(
        self, request: pb.AbortPublishRequest, context: Context
    ) -> pb.AbortPublishResponse:
        return pb.AbortPublishResponse(revision=await self._control.aborts.abort(_naming_none(request)))

    async def ListHistory(self, request: pb.ListHistoryRequest, context: Context) -> pb.ListHistoryResponse:
        cohort = checked_cohort(request.cohort) if request.cohort else None
        found = await self._history.read(request.model, cohort, request.max_entries)
        return pb.ListHistoryResponse(entries=[entry_message(each) for each in found])

    async def WatchPublish(
        self, request: pb.WatchPublishRequest, context: Context
    ) -> AsyncIterator[pb.WatchPublishResponse]:
        revision = Revision(request.revision)
        async with contextlib.aclosing(self._history.watch(request.model, revision)) as outcomes:
            async for outcome in outcomes:
                yield pb.WatchPublishResponse(outcome=outcome_message(outcome))

    async def PushCommit(
        self, request: pb.PushCommitRequest, context: Context
    ) -> AsyncIterator[pb.PushCommitResponse]:
        order = PushOrder(
            model=ModelName(request.model),
            revision=Revision(request.revision) if request.revision else None,
            who=attested(request.who),
            why=request.why,
        )
        async with contextlib.aclosing(self._control.pushes.push(order)) as steps:
            async for step in steps:
                yield pushed_message(step)

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
            who=attested(request.who),
            why=request.why,
        )
        qualified = await self._control.qualifications.qualify(order)
        return pb.QualifyArtifactResponse(qualification=qualification_message(qualified))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(status=status_message(self._views.read(), self._gateway_id))

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Context
    ) -> AsyncIterator[pb.WatchStatusResponse]:
        async with contextlib.aclosing(self._views.changes()) as changes:
            async for status in changes:
                yield pb.WatchStatusResponse(status=status_message(status, self._gateway_id))


def _expected(
    request: pb.PublishModelRequest
    | pb.UnpublishModelRequest
    | pb.RollbackModelRequest
    | pb.AbortPublishRequest,
) -> Revision | None:
    return Revision(request.expected_revision) if request.HasField("expected_revision") else None


def _naming_none(request: pb.UnpublishModelRequest | pb.AbortPublishRequest) -> PublishOrder:
    return PublishOrder(
        model=ModelName(request.model),
        cohort=checked_cohort(request.cohort),
        artifact_id=None,
        expected_revision=_expected(request),
        who=attested(request.who),
        why=request.why,
    )
