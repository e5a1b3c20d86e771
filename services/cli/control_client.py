"""ControlService as the commands use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final, NamedTuple, Self

import grpc

from halogen.v1 import control_pb2 as pb
from halogen.v1.control_pb2_grpc import ControlServiceStub
from services.common.errors import Unavailable, Unsupported
from services.common.registry.publish_records import SwapMode
from services.common.rpc.client import connect
from services.common.rpc.endpoint import Endpoint, Peer
from services.common.rpc.status import UNREACHABLE, from_rpc_error

START_S: Final = 60.0  # for a gateway that is being started
SILENT: Final = "silent"  # in the metadata of UNREACHABLE: nothing came back, not even a refusal
_LAST_WORDS_S: Final = 2.0
_MAX_ENTRIES: Final = 1_000  # as many as are kept of a model
_COMMON: Final = ("model", "cohort", "who", "why", "expected_revision")


class Means(NamedTuple):
    """How a publish is to be taken into service; what is None is as the servers have it."""

    mode: SwapMode | None = None
    min_ready: int | None = None
    timeout_ms: int | None = None
    fallback_on_failure: bool | None = None
    memory_guard_ratio: float | None = None

    @property
    def drains_first(self) -> bool:
        """Whether there may be no room for it beside what serves."""
        return self.mode is SwapMode.DRAIN_THEN_LOAD

    @property
    def message(self) -> pb.Strategy:
        said = self._asdict() | {"mode": f"SWAP_MODE_{self.mode.upper()}" if self.mode else None}
        return pb.Strategy(**said)


class Order(NamedTuple):
    """A publish as the operator asks for it."""

    model: str
    cohort: str
    artifact_id: str
    who: str
    why: str
    expected_revision: int | None = None
    means: Means = Means()

    def fields(self, *names: str) -> dict[str, Any]:
        """Those of a request; what is not said is left out."""
        told = self._asdict()
        return {name: told[name] for name in (*names, *_COMMON) if told[name] is not None}


class ControlClient:
    """One gateway's ControlService; a context manager. Raises the errors of services.common.errors."""

    def __init__(self, gateway: Peer) -> None:
        self._address = Endpoint.of(gateway).address
        self._channel = connect(gateway)
        self._stub = ControlServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def connect(self, patience_s: float) -> None:
        """Returns once a gateway answers, also one that is yet to start.

        Raises:
            Unavailable: None does within `patience_s` seconds; SILENT where nothing came back.
        """
        try:
            async with asyncio.timeout(patience_s):
                await self._channel.channel_ready()
        except TimeoutError:
            said = await self._last_words()
            raise Unavailable(
                f"nobody answers at {self._address} within {patience_s:g} s" + (said and f": {said}"),
                reason=UNREACHABLE,
                metadata={} if said else {SILENT: "true"},
            ) from None

    async def _last_words(self) -> str:
        """What the transport says of its last try, empty where it is still at one."""
        try:
            await self._stub.GetStatus(pb.GetStatusRequest(), timeout=_LAST_WORDS_S)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.UNAVAILABLE:
                return failure.details() or ""
        return ""

    async def check(self, model: str, manifest: bytes, timeout_s: float) -> None:
        """Raises what `register` would refuse before anything is read or written; an older gateway does not tell."""
        request = pb.CheckArtifactRequest(model=model, manifest=manifest)
        with contextlib.suppress(Unsupported), _our_errors():
            await self._stub.CheckArtifact(request, timeout=timeout_s)

    async def register(
        self, request: pb.RegisterArtifactRequest
    ) -> AsyncGenerator[pb.RegisterArtifactResponse, None]:
        with _our_errors():
            call = self._stub.RegisterArtifact(request, wait_for_ready=True)
            try:
                async for step in call:
                    yield step
            finally:
                call.cancel()

    async def publish(self, order: Order) -> int:
        """The model's new revision."""
        request = pb.PublishModelRequest(**order.fields("artifact_id"), strategy=order.means.message)
        with _our_errors():
            response = await self._stub.PublishModel(request)
        return response.revision

    async def unpublish(self, order: Order) -> int:
        """The model's new revision; the order names no artifact."""
        with _our_errors():
            response = await self._stub.UnpublishModel(pb.UnpublishModelRequest(**order.fields()))
        return response.revision

    async def roll_back(self, order: Order, to_revision: int | None) -> pb.RollbackModelResponse:
        """The model's new revision and what it names; None takes the last that served with another artifact."""
        request = pb.RollbackModelRequest(
            **order.fields(), strategy=order.means.message, to_revision=to_revision
        )
        with _our_errors():
            response: pb.RollbackModelResponse = await self._stub.RollbackModel(request)
        return response

    async def abort(self, order: Order) -> int:
        """The model's new revision, which names what is served now."""
        with _our_errors():
            response = await self._stub.AbortPublish(pb.AbortPublishRequest(**order.fields()))
        return response.revision

    async def history(self, request: pb.ListHistoryRequest, timeout_s: float) -> list[pb.HistoryEntry]:
        """Newest first."""
        with _our_errors():
            response = await self._stub.ListHistory(request, timeout=timeout_s)
        return list(response.entries)

    async def publishes(self, model: str, cohort: str, timeout_s: float) -> list[pb.HistoryEntry]:
        """All of a cohort that are kept, newest first."""
        request = pb.ListHistoryRequest(model=model, cohort=cohort, max_entries=_MAX_ENTRIES)
        return await self.history(request, timeout_s)

    async def watch_publish(self, model: str, revision: int) -> AsyncGenerator[pb.PublishOutcome, None]:
        """How one publish stands, at once and after every change; ends with its end."""
        with _our_errors():
            request = pb.WatchPublishRequest(model=model, revision=revision)
            call = self._stub.WatchPublish(request, wait_for_ready=True)
            try:
                async for response in call:
                    yield response.outcome
            finally:
                call.cancel()

    async def push(self, request: pb.PushCommitRequest) -> AsyncGenerator[pb.PushCommitResponse, None]:
        """How the push stands, at once and after every change; ends with its end."""
        with _our_errors():
            call = self._stub.PushCommit(request, wait_for_ready=True)
            try:
                async for response in call:
                    yield response
            finally:
                call.cancel()

    async def qualify(self, request: pb.QualifyArtifactRequest) -> pb.Qualification:
        """What is on record then."""
        with _our_errors():
            response = await self._stub.QualifyArtifact(request)
        return response.qualification

    async def status(self, timeout_s: float) -> pb.Status:
        with _our_errors():
            response = await self._stub.GetStatus(pb.GetStatusRequest(), timeout=timeout_s)
        return response.status

    async def watch(self) -> AsyncGenerator[pb.Status, None]:
        """The status at once and after every change."""
        with _our_errors():
            call = self._stub.WatchStatus(pb.WatchStatusRequest(), wait_for_ready=True)
            try:
                async for response in call:
                    yield response.status
            finally:
                call.cancel()


@contextlib.contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from failure
