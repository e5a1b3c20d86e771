"""Credentials on every hop: each role does its own work, and nobody comes in without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from halogen.v1 import control_pb2, engine_pb2
from halogen.v1.engine_pb2_grpc import EngineServiceStub
from services.cli import publish
from services.cli.control_client import ControlClient, Order
from services.common import reread_file
from services.common.auth.role import Role
from services.common.client import Client
from services.common.errors import PermissionDenied, Unauthenticated, Unavailable
from services.common.rpc.client import connect
from services.common.rpc.credentials import Credentials
from services.common.rpc.endpoint import Endpoint
from services.common.rpc.status import from_rpc_error
from tests.credentials import HandedOut, hand_out, write_secret
from tests.scenarios.cluster import Cluster
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
ROLES = ("loader", "engine", "scheduler", "gateway")
SERVICE = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
START_S = 60.0
ONE = [1, 2, 3]


class Guarded(NamedTuple):
    """A system all of whose processes ask their callers."""

    system: Cluster
    handed: HandedOut

    def gateway(self, role: Role) -> Endpoint:
        return Endpoint(self.system.gateway, self.handed.credentials(role))

    async def publish(self, artifact: Path) -> None:
        order = Order("m", "stable", "", who="test", why="test")
        await publish.publish(
            self.gateway(Role.PUBLISH),
            order,
            artifact,
            str(self.system.store),
            reverify=False,
            wait_s=START_S,
        )

    async def ask(self, role: Role) -> list[int]:
        async with Client(self.gateway(role), max_tries=1) as client:
            answer = await client.generate(ONE, model="m", max_tokens=4, timeout_s=START_S).complete()
        return list(answer.token_ids)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_artifact(tmp_path_factory.mktemp("tiny"), seed=3)[0]


@pytest.fixture
def looking_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tokens are looked at with every call."""
    monkeypatch.setattr(reread_file, "LOOK_S", 0.0)


async def test_each_role_does_its_work_and_no_other(start: Start, tmp_path: Path, tiny: Path) -> None:
    """Publish, ask, administer, with tokens on all hops between the processes, too; every other way is refused. The audit
    has the credential's name beside the word.

    Fault injection: turns red when a `serve` gives its server no door, or its channels no credentials.
    """
    handed = hand_out(tmp_path)
    system: Cluster = await start("in_process", **{role: handed.settings() for role in ROLES})
    guarded = Guarded(system, handed)
    await guarded.publish(tiny)
    assert 4 == len(await guarded.ask(Role.INFER))
    assert await guarded.ask(Role.INFER) == await guarded.ask(Role.ADMIN)
    async with ControlClient(guarded.gateway(Role.ADMIN)) as control:
        (cohort,) = (await control.status(START_S)).cohorts
    assert ("m", "test (publish)") == (cohort.model, cohort.who)
    with pytest.raises(PermissionDenied, match="role admin or infer"):
        await guarded.ask(Role.PUBLISH)
    with pytest.raises(Unauthenticated, match="asks for a credential"):
        async with Client(system.gateway) as nobody:
            await nobody.list_models()


async def test_inference_credentials_say_nothing_of_what_is_served(start: Start, tmp_path: Path) -> None:
    """Every method of ControlService refuses them, and names the role that it needs; nothing is written.

    Fault injection: turns red when a row of ControlService lets infer in.
    """
    handed = hand_out(tmp_path)
    system: Cluster = await start("in_process", gateway=handed.settings())
    async with connect(Endpoint(system.gateway, handed.credentials(Role.INFER))) as channel:
        for method in SERVICE.methods:
            kind: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = kind(f"/halogen.v1.ControlService/{method.name}")(b"", timeout=START_S)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await (call.read() if method.server_streaming else call)
            error = from_rpc_error(refused.value)
            assert (PermissionDenied, "ROLE_INSUFFICIENT") == (type(error), error.reason)
            assert "admin" in error.metadata["needed"]


async def test_tokens_are_not_generated_without_a_ticket(start: Start, tmp_path: Path) -> None:
    """A process of ours that has none is UNAUTHENTICATED, and a caller of inference does not get so far.

    Fault injection: turns red when the gate does not ask for a MAC.
    """
    handed = hand_out(tmp_path)
    system: Cluster = await start("in_process", **{role: handed.settings() for role in ROLES})
    seen = []
    for role in (Role.SYSTEM, Role.INFER):
        async with connect(Endpoint(system.engine, handed.credentials(role))) as channel:
            call = EngineServiceStub(channel).GenerateTokens(
                engine_pb2.GenerateTokensRequest(request_id="r", prompt_token_ids=ONE), timeout=START_S
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call.read()
            seen.append((refused.value.code().name, from_rpc_error(refused.value).reason))
    assert [("UNAUTHENTICATED", "TICKET_MISSING"), ("PERMISSION_DENIED", "ROLE_INSUFFICIENT")] == seen


async def test_a_gateway_that_others_do_not_let_in_says_so_to_nobody_elses_caller(
    start: Start, tmp_path: Path, tiny: Path, looking_always: None
) -> None:
    """Its caller did nothing wrong: UNAVAILABLE, until the token is replaced; then it serves, without a restart.

    Fault injection: turns red when `from_peer` hands the peer's refusal on, or the gateway reads its token once.
    """
    handed = hand_out(tmp_path)
    own = tmp_path / "gateway.token"
    write_secret(own, handed.tokens[Role.SYSTEM])
    settings = {role: handed.settings() for role in ROLES}
    settings["gateway"]["token_file"] = own
    guarded = Guarded(await start("in_process", **settings), handed)
    await guarded.publish(tiny)
    answer = await guarded.ask(Role.INFER)
    write_secret(own, handed.tokens[Role.INFER])
    with pytest.raises(Unavailable, match="does not let this process in") as refused:
        await guarded.ask(Role.INFER)
    assert "PEER_REFUSES" == refused.value.reason
    write_secret(own, handed.tokens[Role.SYSTEM])
    assert answer == await guarded.ask(Role.INFER)


async def test_a_credential_that_is_withdrawn_is_refused_without_a_restart(
    start: Start, tmp_path: Path, looking_always: None
) -> None:
    """Its line is gone from the file of callers; the others' tokens hold."""
    handed = hand_out(tmp_path, leaver=Role.INFER)
    system: Cluster = await start("in_process", gateway=handed.settings())
    left = Endpoint(system.gateway, Credentials.of(token=handed.tokens["leaver"]))
    stays = Endpoint(system.gateway, handed.credentials(Role.INFER))
    async with Client(left) as leaver, Client(stays) as other:
        assert [] == await leaver.list_models()
        lines = handed.callers_file.read_text().splitlines()
        write_secret(handed.callers_file, "\n".join(line for line in lines if "leaver" not in line))
        with pytest.raises(Unauthenticated, match="not known here"):
            await leaver.list_models()
        assert [] == await other.list_models()


async def test_nobody_ends_another_tenants_request(start: Start, tmp_path: Path, tiny: Path) -> None:
    """An id is its tenant's: another neither aborts it, nor learns that it is in use.

    Fault injection: turns red when the gateway keeps running requests by their ids alone.
    """
    handed = hand_out(tmp_path, other=Role.INFER)
    guarded = Guarded(await start("in_process", gateway=handed.settings()), handed)
    await guarded.publish(tiny)
    stranger = Endpoint(guarded.system.gateway, Credentials.of(token=handed.tokens["other"]))
    async with Client(guarded.gateway(Role.INFER)) as mine, Client(stranger) as other:
        asked: Any = {"model": "m", "request_id": "r", "ignore_eos": True, "timeout_s": START_S}
        async with mine.generate(ONE, max_tokens=100, **asked) as stream:
            first = await anext(aiter(stream))
            assert 4 == len((await other.generate(ONE, max_tokens=4, **asked).complete()).token_ids)
            assert not await other.abort("r")
            rest = [token for chunk in [chunk async for chunk in stream] for token in chunk.token_ids]
    assert 100 == len(first.token_ids) + len(rest)
