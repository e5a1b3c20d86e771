"""Every call shows who makes it before anything else is done with it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from structlog.testing import capture_logs

from halogen.v1 import control_pb2, inference_pb2
from halogen.v1.control_pb2_grpc import ControlServiceStub, add_ControlServiceServicer_to_server
from halogen.v1.inference_pb2_grpc import InferenceServiceStub, add_InferenceServiceServicer_to_server
from services.common.auth.access import Access
from services.common.auth.principal import Principal, caller, calling
from services.common.auth.role import Role
from services.common.auth.tokens import Tokens
from services.common.errors import HalogenError, InvalidRequest, PermissionDenied, Unauthenticated
from services.common.metrics import fresh_registry
from services.common.registry.contact import RegistryContact
from services.common.reread_file import LOOK_S, RereadFile
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.credentials import Credentials
from services.common.rpc.door import Door
from services.common.rpc.endpoint import Endpoint
from services.common.rpc.entrance import Entrance
from services.common.rpc.server import RpcServer
from services.common.rpc.status import from_rpc_error
from services.common.telemetry.tracing import outgoing, span
from services.common.token_file import read_token
from tests.credentials import HandedOut, hand_out, write_secret
from tests.recorded_spans import recording
from tests.scrape import Scrape, read

SERVICES = ["halogen.v1.InferenceService", "halogen.v1.ControlService"]
DEADLINE_S = 30.0


class Gateway:
    """Notes who called, with what left of the time."""

    def __init__(self) -> None:
        self.callers: list[Principal | None] = []
        self.traces: list[str] = []
        self.left_s: list[float] = []
        self.news = asyncio.Event()

    def note(self, context: Any) -> None:
        self.callers.append(caller())
        self.traces += [str(value).split("-")[1] for key, value in outgoing() if key == "traceparent"]
        self.left_s.append(context.time_remaining())

    async def Abort(self, request: Any, context: Any) -> Any:  # noqa: N802  # as the protos name it
        self.note(context)
        return inference_pb2.AbortResponse(found=True)

    async def ListModels(self, request: Any, context: Any) -> Any:  # noqa: N802  # as the protos name it
        raise InvalidRequest("as the handler says", reason="ITS_OWN")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802  # as the protos name it
        self.note(context)
        yield inference_pb2.GenerateResponse()
        await asyncio.sleep(0)
        self.note(context)

    async def GetStatus(self, request: Any, context: Any) -> Any:  # noqa: N802  # as the protos name it
        self.note(context)
        return control_pb2.GetStatusResponse()

    async def WatchStatus(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802  # the same
        yield control_pb2.WatchStatusResponse()
        await self.news.wait()
        yield control_pb2.WatchStatusResponse()
        await asyncio.Event().wait()  # for as long as its caller stays

    def __getattr__(self, name: str) -> Any:
        return None  # the other methods


class System:
    """A server that asks its callers, and looks at its file of them with every call."""

    def __init__(self, address: str, handed: HandedOut, gateway: Gateway, server: RpcServer) -> None:
        self.address, self.handed, self.gateway, self.server = address, handed, gateway, server

    def scrape(self) -> Scrape:
        return read(fresh_registry("gateway", "build", self.server, RegistryContact()))

    def channel(self, token: str = "") -> grpc.aio.Channel:
        return connect(Endpoint(self.address, Credentials.of(token=token)))

    async def ask(self, token: str, method: str = "Abort") -> Any:
        """One call; raises what its status stands for."""
        async with self.channel(token) as channel:
            inference: Any = InferenceServiceStub(channel)
            control: Any = ControlServiceStub(channel)
            try:
                if method == "Generate":
                    return [one async for one in inference.Generate(inference_pb2.GenerateRequest())]
                if method == "GetStatus":
                    return await control.GetStatus(control_pb2.GetStatusRequest())
                return await getattr(inference, method)(inference_pb2.AbortRequest())
            except grpc.aio.AioRpcError as failure:
                raise from_rpc_error(failure) from None


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    handed, gateway = hand_out(tmp_path), Gateway()
    ticks = itertools.count(0.0, LOOK_S)
    callers = RereadFile(handed.callers_file, Tokens.read, lambda: next(ticks))
    server = RpcServer(SERVICES, door=Door(access=Access(callers), callers=callers))
    add_InferenceServiceServicer_to_server(gateway, server.grpc_server)  # type: ignore[arg-type]
    add_ControlServiceServicer_to_server(gateway, server.grpc_server)  # type: ignore[arg-type]
    bound = await server.start(Address("127.0.0.1", 0))
    yield System(str(bound), handed, gateway, server)
    await server.stop(0)


@pytest.mark.parametrize(("method", "times"), [("Abort", 1), ("Generate", 2)])
async def test_the_handler_knows_its_caller(method: str, times: int, system: System) -> None:
    """From the first line of a unary or a stream to its last; nobody is left over for the next call.

    Fault injection: turns red when the entrance does not keep the principal.
    """
    for role in (Role.INFER, Role.ADMIN):
        await system.ask(system.handed.tokens[role], method)
    expected = [Principal(role, role) for role in (Role.INFER, Role.ADMIN) for _ in range(times)]
    assert expected == system.gateway.callers
    assert caller() is None


@pytest.mark.parametrize(
    ("token", "method", "error", "reason", "words"),
    [
        ("", "Abort", Unauthenticated, "CREDENTIAL_MISSING", "--token-file"),
        ("", "Generate", Unauthenticated, "CREDENTIAL_MISSING", "Bearer TOKEN"),
        ("forged", "Abort", Unauthenticated, "TOKEN_UNKNOWN", "ask an operator"),
        (
            "infer",
            "GetStatus",
            PermissionDenied,
            "ROLE_INSUFFICIENT",
            "of role admin or publish; .* of role infer",
        ),
        (
            "publish",
            "Generate",
            PermissionDenied,
            "ROLE_INSUFFICIENT",
            "InferenceService.Generate needs .*infer",
        ),
        ("system", "Abort", PermissionDenied, "ROLE_INSUFFICIENT", "of role admin or infer"),
    ],
)
async def test_who_may_not_call_is_told_what_is_needed(
    token: str, method: str, error: type[HalogenError], reason: str, words: str, system: System
) -> None:
    """Nothing shown, nothing known, another role: each in its status, and the handler does not hear of it.

    Fault injection: turns red when `Access.admit` does not look into the table.
    """
    with pytest.raises(error, match=words) as refused:
        await system.ask(system.handed.tokens.get(token, token), method)
    assert reason == refused.value.reason
    assert [] == system.gateway.callers


@pytest.mark.parametrize("shown", ["Basic {}", "{}", "Bearer", "bearer", "Bearer  "])
async def test_only_the_bearer_scheme_is_a_credential(shown: str, system: System) -> None:
    """Other schemes, and no token at all, are as if nothing was shown."""
    async with connect(system.address) as channel:
        call: Any = InferenceServiceStub(channel).Abort
        metadata = (("authorization", shown.format(system.handed.tokens["infer"])),)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(inference_pb2.AbortRequest(), metadata=metadata)
        assert "CREDENTIAL_MISSING" == from_rpc_error(refused.value).reason
        lower = (("authorization", f"bearer {system.handed.tokens['infer']}"),)
        await call(inference_pb2.AbortRequest(), metadata=lower)


async def test_deadline_trace_and_errors_pass_the_entrance(system: System) -> None:
    """What the caller sent with the call reaches the handler, and what that raises reaches the caller."""
    with recording():
        async with system.channel(system.handed.tokens["infer"]) as channel:
            stub: Any = InferenceServiceStub(channel)
            with span("caller") as opened:
                await stub.Abort(inference_pb2.AbortRequest(), timeout=DEADLINE_S)
            trace_id = f"{opened.get_span_context().trace_id:032x}"
    assert [trace_id] == system.gateway.traces
    assert 0 < system.gateway.left_s[0] < 2 * DEADLINE_S  # gRPC rounds it
    with pytest.raises(InvalidRequest, match="as the handler says") as failure:
        await system.ask(system.handed.tokens["infer"], "ListModels")
    assert "ITS_OWN" == failure.value.reason


async def test_a_refused_message_is_not_even_parsed(system: System) -> None:
    """Nonsense from nobody is nobody's; the same from a caller who may is INVALID_ARGUMENT, not a fault of ours.

    Fault injection: turns red when messages are parsed before the entrance.
    """
    seen = []
    for token in ("", system.handed.tokens["infer"]):
        async with system.channel(token) as channel:
            call: Any = channel.unary_unary("/halogen.v1.InferenceService/Abort")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"\xff\xff\xff\xff")
            seen.append(from_rpc_error(refused.value).reason)
    assert ["CREDENTIAL_MISSING", "MESSAGE_MALFORMED"] == seen


async def test_health_and_reflection_ask_nobody(system: System) -> None:
    """Balancers and probes have no credential."""
    async with system.channel() as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (
            health_pb2.HealthCheckResponse.NOT_SERVING
            == (await health.Check(health_pb2.HealthCheckRequest())).status
        )
    with grpc.insecure_channel(system.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        found = await asyncio.to_thread(
            DescriptorPool(database).FindServiceByName, "halogen.v1.InferenceService"
        )
    assert "InferenceService" == found.name


async def test_who_is_refused_is_counted_and_told(system: System) -> None:
    """By reason, for Prometheus; the log says who called what, and whence. A file that is not taken is told, too.

    Fault injection: turns red when the entrance notes no refusal.
    """
    refused = [("", "Abort"), ("", "Abort"), ("forged", "Abort"), ("infer", "GetStatus")]
    with capture_logs() as logs:
        for token, method in refused:
            with pytest.raises(HalogenError):
                await system.ask(system.handed.tokens.get(token, token), method)
    counts = {"CREDENTIAL_MISSING": 2, "TOKEN_UNKNOWN": 1, "ROLE_INSUFFICIENT": 1}
    assert counts == system.scrape().by("halogen_callers_refused_total", "reason")
    told = [entry for entry in logs if entry["event"] == "caller_refused"]
    assert [*counts] == [entry["reason"] for entry in told]
    assert "/halogen.v1.ControlService/GetStatus" == told[-1]["method"]
    assert told[-1]["peer"].startswith("ipv4:127.0.0.1:")
    assert 0 == system.scrape().value("halogen_callers_file_refused")
    write_secret(system.handed.callers_file, "no line")
    assert 1 == system.scrape().value("halogen_callers_file_refused")


async def test_a_watch_ends_with_its_callers_credential(system: System) -> None:
    """What was begun with a token tells nothing more once the token is withdrawn; others' watches go on.

    Fault injection: turns red when a watch asks its caller at its beginning only.
    """
    tokens, callers = system.handed.tokens, system.handed.callers_file
    async with system.channel(tokens["publish"]) as left, system.channel(tokens["admin"]) as stays:
        request = control_pb2.WatchStatusRequest()
        gone, kept = (ControlServiceStub(each).WatchStatus(request) for each in (left, stays))
        await gone.read()
        await kept.read()
        lines = callers.read_text().splitlines()
        write_secret(callers, "\n".join(line for line in lines if "publish" not in line))
        system.gateway.news.set()
        await kept.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await gone.read()
    assert "TOKEN_UNKNOWN" == from_rpc_error(refused.value).reason


def test_a_process_of_ours_is_not_asked_again() -> None:
    """Its token may be replaced while it watches: it shows the new one with its next call.

    Fault injection: turns red when `ask_again` asks everybody.
    """
    call: Any = None
    with calling(Principal("engine-1", Role.SYSTEM)):
        Entrance(Access()).ask_again("/halogen.v1.EngineService/WatchOccupancy", call)


async def test_a_callers_own_file_is_read_again(system: System, tmp_path: Path) -> None:
    """A channel that stays open shows the new token once the file is another one.

    Fault injection: turns red when a channel reads its token once.
    """
    now = 0.0
    write_secret(tmp_path / "own", "old-and-gone")
    credentials = Credentials(token=RereadFile(tmp_path / "own", read_token, lambda: now))
    async with connect(Endpoint(system.address, credentials)) as channel:
        stub: Any = InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Abort(inference_pb2.AbortRequest())
        write_secret(tmp_path / "own", system.handed.tokens["infer"])
        now += LOOK_S
        await stub.Abort(inference_pb2.AbortRequest())
    assert [Role.INFER] == [each.role for each in system.gateway.callers if each]
