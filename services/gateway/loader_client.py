"""Reads artifacts' small files from a loader, over the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import grpc

from halogen.v1 import loader_pb2 as pb
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.checkpoint.signatures import SIGNATURES_NAME
from services.common.errors import HalogenError, InvalidRequest, NotFound, Unavailable
from services.common.ids import ArtifactId
from services.common.rpc.client import ChannelPool
from services.gateway.loaders import Loaders
from services.gateway.peer_failure import peer_failure
from services.gateway.text_model import OPTIONAL_FILES, REQUIRED_FILES

if TYPE_CHECKING:
    from halogen.v1.loader_pb2_grpc import LoaderServiceAsyncStub

MAX_FILE_BYTES: Final = 256 << 20
_READ_S: Final = 30.0

R = TypeVar("R")


class Description(NamedTuple):
    """What an artifact says of itself: the content of its manifest, and of its signatures, empty where there are none."""

    manifest: bytes
    signatures: bytes


class LoaderFiles:
    """Asks one loader after the other, beginning with the one that answered last.

    Args:
        channels: Kept by the process.
        loaders: Where they are.
    """

    def __init__(self, channels: ChannelPool, loaders: Loaders) -> None:
        self._channels = channels
        self._loaders = loaders

    async def read(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        """The files that a text model is made of; the optional ones only if the artifact has them.

        Raises:
            HalogenError: What the last loader asked had against it.
        """
        return await self._from_first(lambda loader: self._read_from(loader, artifact_id))

    async def describe(self, artifact_id: ArtifactId) -> Description:
        """The manifest and the signatures of an artifact in the loaders' store; raises what `read` does."""
        return await self._from_first(lambda loader: self._describe_from(loader, artifact_id))

    async def _from_first(self, ask: Callable[[str], Awaitable[R]]) -> R:
        """What the first loader answers that can."""
        failure: HalogenError = Unavailable("no loader is registered; start one", retry_after_s=1.0)
        for loader in self._loaders.addresses:
            try:
                answer = await ask(loader)
            except HalogenError as refusal:
                failure = refusal
            else:
                self._loaders.prefer(loader)
                return answer
        raise failure

    def _stub(self, loader: str) -> LoaderServiceAsyncStub:
        return LoaderServiceStub(self._channels.get(loader))

    async def _describe_from(self, loader: str, artifact_id: ArtifactId) -> Description:
        stub = self._stub(loader)
        manifest, signatures = await _read_file(stub, artifact_id, MANIFEST_NAME), b""
        with contextlib.suppress(NotFound):
            signatures = await _read_file(stub, artifact_id, SIGNATURES_NAME)
        return Description(manifest, signatures)

    async def _read_from(self, loader: str, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        stub = self._stub(loader)
        files = {path: await _read_file(stub, artifact_id, path) for path in REQUIRED_FILES}
        for path in OPTIONAL_FILES:
            try:
                files[path] = await _read_file(stub, artifact_id, path)
            except NotFound:
                continue
        return files


async def _read_file(stub: LoaderServiceAsyncStub, artifact_id: ArtifactId, path: str) -> bytes:
    call = stub.ReadFile(pb.ReadFileRequest(artifact_id=artifact_id, path=path), timeout=_READ_S)
    content = bytearray()
    try:
        async for message in call:
            content += message.data
            if len(content) > MAX_FILE_BYTES:
                raise InvalidRequest(f"{path} of the artifact has more than {MAX_FILE_BYTES} bytes")
    except grpc.aio.AioRpcError as failure:
        raise peer_failure(failure, "a loader") from failure
    finally:
        call.cancel()
    return bytes(content)
