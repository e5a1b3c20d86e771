"""The engine's side of LoaderService: artifacts made ready on this host."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc
import structlog

from halogen.v1 import loader_pb2, loader_pb2_grpc
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.checkpoint.manifest import MANIFEST_NAME, PATHS, Manifest, Role
from services.common.errors import CorruptData, InternalError, Unavailable
from services.common.ids import ArtifactId
from services.common.rpc.peer_error import from_peer
from services.engine.loaded_model import PreparedArtifact

SILENCE_S: Final = 60.0  # a loader at work tells its progress far more often
READ_TIMEOUT_S: Final = 30.0

log = structlog.get_logger()


class LoaderClient:
    """Asks one loader.

    Args:
        channel: To the loader on this host.
        layout: How matrices shall lie; None: as they are stored.
    """

    def __init__(self, channel: grpc.aio.Channel, layout: KernelLayout | None = None) -> None:
        self._stub = loader_pb2_grpc.LoaderServiceStub(channel)
        self._layout = layout

    async def manifest(self, artifact_id: ArtifactId) -> Manifest:
        """The artifact's manifest, vouched for by its id.

        Raises:
            HalogenError: As the loader says.
            CorruptData: It is another artifact's.
        """
        try:
            manifest = Manifest.decode(await self._read(artifact_id, MANIFEST_NAME))
        except grpc.aio.AioRpcError as failure:
            raise from_peer(failure, "the loader") from None
        if manifest.id != artifact_id:
            raise CorruptData(f"the loader gave another artifact's {MANIFEST_NAME}")
        return manifest

    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact:
        """Waits until the artifact is verified and in shared memory, in the layout that is wanted if the loader can make it.

        Raises:
            HalogenError: As the loader says; Unavailable also when it falls silent.
        """
        try:
            prepared = await self._prepare(artifact_id)
            config = await self._read(artifact_id, PATHS[Role.CONFIG])
        except grpc.aio.AioRpcError as failure:
            raise from_peer(failure, "the loader") from None
        weights = next((f for f in prepared.files if f.path == PATHS[Role.WEIGHTS]), None)
        if weights is None:
            raise InternalError("the loader prepared an artifact without weights")
        return PreparedArtifact(
            artifact_id=artifact_id,
            weights=Path(weights.mapped_path),
            identity=weights.identity,
            lazy_bytes=weights.lazy_bytes,
            config=config,
            layout=_layout(weights),
        )

    async def text_files(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        """The small files of an artifact that has representative requests; nothing of any other.

        Raises:
            HalogenError: As the loader says.
        """
        manifest = await self.manifest(artifact_id)
        if manifest.file(PATHS[Role.REPRESENTATIVE_REQUESTS]) is None:
            return {}
        try:
            return {file.path: await self._read(artifact_id, file.path) for file in manifest.small_files}
        except grpc.aio.AioRpcError as failure:
            raise from_peer(failure, "the loader") from None

    async def _prepare(self, artifact_id: ArtifactId) -> loader_pb2.PreparedArtifact:
        wanted = loader_pb2.WeightLayout(**self._layout._asdict()) if self._layout else None
        request = loader_pb2.PrepareArtifactRequest(artifact_id=artifact_id, layout=wanted)
        call = self._stub.PrepareArtifact(request)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SILENCE_S) as limit:
                async for message in call:
                    limit.reschedule(loop.time() + SILENCE_S)
                    if message.HasField("prepared"):
                        return message.prepared
        except TimeoutError:
            raise Unavailable(f"the loader has said nothing for {SILENCE_S:.0f} s", retry_after_s=1) from None
        finally:
            call.cancel()
        raise Unavailable("the loader ended without preparing the artifact", retry_after_s=1)

    async def _read(self, artifact_id: ArtifactId, path: str) -> bytes:
        call = self._stub.ReadFile(
            loader_pb2.ReadFileRequest(artifact_id=artifact_id, path=path), timeout=READ_TIMEOUT_S
        )
        try:
            return b"".join([message.data async for message in call])
        finally:
            call.cancel()


def _layout(file: loader_pb2.PreparedFile) -> KernelLayout | None:
    return KernelLayout(file.layout.abi, file.layout.isa) if file.HasField("layout") else None
