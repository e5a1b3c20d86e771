"""Has a loader verify an artifact, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import grpc

from halogen.v1 import loader_pb2 as pb
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from services.common.errors import Unavailable
from services.common.ids import ArtifactId
from services.common.rpc.client import ChannelPool
from services.common.rpc.status import from_rpc_error
from services.gateway.control import Verified

_CONNECT_S: Final = 2.0


class LoaderVerifier:
    """Asks the first of `loaders` that answers."""

    def __init__(self, channels: ChannelPool, loaders: Sequence[str]) -> None:
        self._channels = channels
        self._loaders = tuple(loaders)

    async def verify(self, artifact_id: ArtifactId) -> AsyncGenerator[Verified, None]:
        """Yields the progress until every byte is verified; raises CorruptData when one is wrong."""
        stub = LoaderServiceStub(self._channels.get(await self._first_ready()))
        call = stub.PrepareArtifact(pb.PrepareArtifactRequest(artifact_id=artifact_id))
        try:
            async for message in call:
                if message.HasField("progress"):
                    yield Verified(message.progress.done_bytes, message.progress.total_bytes)
        except grpc.aio.AioRpcError as failure:
            raise from_rpc_error(failure) from failure
        finally:
            call.cancel()

    async def _first_ready(self) -> str:
        for address in self._loaders:
            try:
                await asyncio.wait_for(self._channels.get(address).channel_ready(), _CONNECT_S)
            except TimeoutError:
                continue
            return address
        raise Unavailable(
            f"no loader answers at {', '.join(self._loaders)}; start one, or correct --loader",
            retry_after_s=1.0,
        )
