"""Has a loader verify an artifact, over the wire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Final

import grpc
import structlog

from halogen.v1 import loader_pb2 as pb
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.errors import Unavailable
from services.common.ids import ArtifactId
from services.common.rpc.client import ChannelPool
from services.gateway.artifacts import Verified
from services.gateway.loaders import Loaders
from services.gateway.peer_failure import PEER_GONE, peer_failure

_CONNECT_S: Final = 2.0
_PATIENCE_S: Final = 15.0  # for a loader that is just starting
_TRIES: Final = 3  # an artifact may be what they die of
_ENDED: Final = frozenset({"STOPPING", PEER_GONE})

_AS_STORED: Final[frozenset[KernelLayout | None]] = frozenset({None})

log = structlog.get_logger()


class _LoaderGone(Exception):
    """It ended before it had verified everything."""


class LoaderVerifier:
    """Asks the first of `loaders` that answers.

    Args:
        channels: To them.
        loaders: Whom there are to ask.
        layouts: How the engines that are there want weights to lie; None among them: as they are stored. What nobody
            would map is kept in no memory.
    """

    def __init__(
        self,
        channels: ChannelPool,
        loaders: Loaders,
        layouts: Callable[[], frozenset[KernelLayout | None]] = lambda: _AS_STORED,
    ) -> None:
        self._channels = channels
        self._loaders = loaders
        self._layouts = layouts

    async def verify(
        self, artifact_id: ArtifactId, *, verify_only: bool = False
    ) -> AsyncGenerator[Verified, None]:
        """Yields the progress until every byte is verified.

        Args:
            artifact_id: Which.
            verify_only: Whether nothing of it is to be kept in memory.

        A loader that dies meanwhile is followed by the next that answers, perhaps the same, started again.

        Raises:
            CorruptData: A byte is wrong.
            Unavailable: No loader answers, or one after the other died of it.
            HalogenError: What the loader says.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                async with contextlib.aclosing(self._ask(artifact_id, verify_only=verify_only)) as steps:
                    async for step in steps:
                        yield step
            except _LoaderGone as gone:
                log.warning("loader_gone", artifact_id=artifact_id, attempt=attempt, error=str(gone))
            else:
                return
        raise Unavailable(
            f"{_TRIES} loaders in turn ended while they verified the artifact; see their logs, then publish again",
            reason="LOADER_GONE",
        )

    async def _ask(self, artifact_id: ArtifactId, *, verify_only: bool) -> AsyncGenerator[Verified, None]:
        stub = LoaderServiceStub(self._channels.get(await self._first_ready()))
        for request in self._requests(artifact_id, verify_only=verify_only):
            async with contextlib.aclosing(_answered(stub.PrepareArtifact(request))) as steps:
                async for step in steps:
                    yield step

    def _requests(self, artifact_id: ArtifactId, *, verify_only: bool) -> Iterator[pb.PrepareArtifactRequest]:
        """Has its own bytes verified, and what engines will map kept in memory: one request where that is the same."""
        layouts = frozenset[KernelLayout | None]() if verify_only else self._layouts()
        if None in layouts:
            yield pb.PrepareArtifactRequest(artifact_id=artifact_id)
            return
        for layout in layouts:
            if layout is not None:
                wanted = pb.WeightLayout(**layout._asdict())
                yield pb.PrepareArtifactRequest(artifact_id=artifact_id, layout=wanted)
        yield pb.PrepareArtifactRequest(artifact_id=artifact_id, verify_only=True)  # what was just packed is

    async def _first_ready(self) -> str:
        """Looks again whenever a loader registers, for a while."""
        try:
            async with asyncio.timeout(_PATIENCE_S), contextlib.aclosing(self._loaders.changes()) as changes:
                while True:
                    await anext(changes)
                    for address in self._loaders.addresses:
                        if await self._answers(address):
                            return address
        except TimeoutError:
            raise Unavailable(
                "no loader answers; start one: halogen status shows them", retry_after_s=1.0
            ) from None

    async def _answers(self, address: str) -> bool:
        try:
            await asyncio.wait_for(self._channels.get(address).channel_ready(), _CONNECT_S)
        except TimeoutError:
            return False
        return True


async def _answered(call: Any) -> AsyncGenerator[Verified, None]:
    """The progress of one call; raises what it ends with."""
    try:
        async for message in call:
            if message.HasField("progress"):
                yield Verified(message.progress.done_bytes, message.progress.total_bytes)
    except grpc.aio.AioRpcError as failure:
        error = peer_failure(failure, "the loader")
        if isinstance(error, Unavailable) and error.reason in _ENDED:
            raise _LoaderGone(error.message) from failure
        raise error from failure
    finally:
        call.cancel()
