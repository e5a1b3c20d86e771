"""LoaderService on the wire: requests to nouns and back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeAlias

import grpc

from halogen.v1 import loader_pb2 as pb
from halogen.v1 import loader_pb2_grpc as rpc
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.ids import ArtifactId
from services.common.telemetry.attributes import ARTIFACT_ID
from services.common.telemetry.tracing import annotate
from services.loader.artifacts import Artifacts
from services.loader.conversions import Conversions
from services.loader.flight import Done
from services.loader.preparations import Preparations
from services.loader.ranks import Ranks
from services.loader.residents import Prepared
from services.loader.small_reads import read_small
from services.loader.wanted import Wanted

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class LoaderServicer(rpc.LoaderServiceServicer):
    """Translates; decides nothing."""

    def __init__(self, artifacts: Artifacts, preparations: Preparations, conversions: Conversions) -> None:
        self._artifacts = artifacts
        self._preparations = preparations
        self._conversions = conversions

    async def PrepareArtifact(
        self, request: pb.PrepareArtifactRequest, context: Context
    ) -> AsyncIterator[pb.PrepareArtifactResponse]:
        annotate({ARTIFACT_ID: request.artifact_id})
        async with contextlib.aclosing(self._steps(request)) as steps:
            async for step in steps:
                yield _to_response(step)

    def _steps(self, request: pb.PrepareArtifactRequest) -> AsyncGenerator[Done | Prepared, None]:
        artifact_id = ArtifactId(request.artifact_id)
        if request.verify_only:
            return self._preparations.check(artifact_id)
        return self._preparations.prepare(artifact_id, Wanted(_ranks(request), _layout(request)))

    async def ReadFile(
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[pb.ReadFileResponse]:
        chunks = read_small(self._artifacts, ArtifactId(request.artifact_id), request.path)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                yield pb.ReadFileResponse(data=bytes(chunk))

    async def ConvertCheckpoint(
        self, request: pb.ConvertCheckpointRequest, context: Context
    ) -> AsyncIterator[pb.ConvertCheckpointResponse]:
        async with contextlib.aclosing(self._conversions.convert(request.source)) as told:
            async for step in told:
                if isinstance(step, Done):
                    yield pb.ConvertCheckpointResponse(
                        done_bytes=step.done_bytes, total_bytes=step.total_bytes
                    )
                else:
                    yield pb.ConvertCheckpointResponse(artifact_id=step)


def _ranks(request: pb.PrepareArtifactRequest) -> Ranks | None:
    if not request.HasField("rank"):
        return None
    return Ranks.asked(request.rank.size, request.rank.index, request.rank.indices_here)


def _layout(request: pb.PrepareArtifactRequest) -> KernelLayout | None:
    if not request.HasField("layout"):
        return None
    return KernelLayout(request.layout.abi, request.layout.isa)


def _to_response(step: Done | Prepared) -> pb.PrepareArtifactResponse:
    if isinstance(step, Done):
        progress = pb.PrepareProgress(done_bytes=step.done_bytes, total_bytes=step.total_bytes)
        return pb.PrepareArtifactResponse(progress=progress)
    file = pb.PreparedFile(
        path=step.path,
        mapped_path=step.holding.mapped_path,
        size_bytes=step.holding.size_bytes,
        identity=step.identity,
        place=step.holding.kind.value,
        huge_pages=step.huge_pages,
        lazy_bytes=step.lazy_bytes,
        layout=pb.WeightLayout(**step.layout._asdict()) if step.layout else None,
    )
    return pb.PrepareArtifactResponse(
        prepared=pb.PreparedArtifact(artifact_id=step.artifact_id, files=[file])
    )
