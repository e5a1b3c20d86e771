"""TLS on every hop, with certificates that say which process calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from halogen.v1 import loader_pb2, scheduler_pb2
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from halogen.v1.scheduler_pb2_grpc import SchedulerServiceStub
from services.cli import publish
from services.cli.control_client import Order
from services.common.auth.role import Role
from services.common.client import Client
from services.common.errors import HalogenError, PermissionDenied, Unauthenticated, Unavailable
from services.common.rpc.client import connect
from services.common.rpc.credentials import NO_CREDENTIALS, Credentials
from services.common.rpc.endpoint import Endpoint
from services.common.rpc.status import from_rpc_error
from tests.certificates import Authority
from tests.credentials import HandedOut, hand_out
from tests.scenarios.cluster import Cluster
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
ROLES = ("loader", "engine", "scheduler", "gateway")
START_S, REFUSED_S = 60.0, 20.0
NAME = "halogen.internal"


class Secured(NamedTuple):
    """A system whose gateway asks for tokens, and whose other processes ask for certificates."""

    system: Cluster
    authority: Authority
    handed: HandedOut

    def user(self, role: Role) -> Endpoint:
        """The gateway, called by its address: its certificate names that too."""
        shown = Credentials.of(token=self.handed.tokens[role], ca_file=self.authority.certificate)
        return Endpoint(self.system.gateway, shown)

    def process(self, authority: Authority, *uris: str) -> Credentials:
        """Of a process that shows a certificate with these names."""
        pair = authority.issue("-".join(uris).replace("/", "-") or "nobody", uris=uris)
        return Credentials.of(
            ca_file=self.authority.certificate,
            cert_file=pair.certificate,
            key_file=pair.key,
            server_name=NAME,
        )


@pytest.fixture
async def secured(start: Start, driver: str, tmp_path: Path) -> Secured:
    authority, handed = Authority(tmp_path), hand_out(tmp_path)
    settings: dict[str, dict[str, Any]] = {}
    for role in ROLES:
        pair = authority.issue(role, uris=[f"halogen:system/{role}"], hosts=(NAME,))
        settings[role] = {
            "tls_cert_file": pair.certificate,
            "tls_key_file": pair.key,
            "tls_ca_file": authority.certificate,
            "tls_server_name": NAME,
            **({} if role == "gateway" else {"tls_client_ca_file": authority.certificate}),
        }
    settings["gateway"]["callers_file"] = handed.callers_file
    return Secured(await start(driver, **settings), authority, handed)


async def read_file(peer: Endpoint) -> HalogenError:
    """What a loader answers to somebody who asks for a file that it has not."""
    async with connect(peer) as channel:
        request = loader_pb2.ReadFileRequest(artifact_id="a" * 64, path="config.json")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await LoaderServiceStub(channel).ReadFile(request, timeout=REFUSED_S).read()
    return from_rpc_error(refused.value)


async def test_a_system_serves_with_tls_on_every_hop(secured: Secured, tmp_path: Path) -> None:
    """Published and asked by token, the hops between the processes by their certificates.

    Fault injection: turns red when a `serve` gives its channels no credentials.
    """
    artifact, _ = make_tiny_artifact(tmp_path / "tiny", seed=3)
    order = Order("m", "stable", "", who="test", why="test")
    store = str(secured.system.store)
    await publish.publish(secured.user(Role.PUBLISH), order, artifact, store, reverify=False, wait_s=START_S)
    async with Client(secured.user(Role.INFER)) as client:
        answer = await client.generate([1, 2, 3], model="m", max_tokens=4, timeout_s=START_S).complete()
    assert 4 == len(answer.token_ids)


@pytest.mark.parametrize("driver", ["in_process"])
async def test_a_certificate_is_a_credential_of_its_role(secured: Secured, tmp_path: Path) -> None:
    """A process comes in; another role, no role, another authority, no certificate, no TLS do not.

    Fault injection: turns red when the server does not require a certificate, or its URI is not looked at.
    """
    loader, stranger = secured.system.loader, Authority(tmp_path, "stranger")
    ours = secured.authority
    seen = {
        "system": await read_file(Endpoint(loader, secured.process(ours, "halogen:system/engine-1"))),
        "infer": await read_file(Endpoint(loader, secured.process(ours, "halogen:infer/team-a"))),
        "nobody": await read_file(Endpoint(loader, secured.process(ours))),
        "stranger": await read_file(Endpoint(loader, secured.process(stranger, "halogen:system/x"))),
        "no certificate": await read_file(
            Endpoint(loader, Credentials.of(ca_file=ours.certificate, server_name=NAME))
        ),
        "in the clear": await read_file(Endpoint(loader, NO_CREDENTIALS)),
    }
    assert {
        "system": "NOT_FOUND",
        "infer": "ROLE_INSUFFICIENT",
        "nobody": "CERTIFICATE_NAMES_NOBODY",
        "stranger": "UNREACHABLE",
        "no certificate": "UNREACHABLE",
        "in the clear": "UNREACHABLE",
    } == {who: error.reason for who, error in seen.items()}
    assert [PermissionDenied, Unauthenticated, Unavailable] == [
        type(seen[who]) for who in ("infer", "nobody", "stranger")
    ]


@pytest.mark.parametrize("driver", ["in_process"])
async def test_a_caller_turns_away_from_a_server_of_another_name(secured: Secured) -> None:
    """Its authority is right, its name is not: nothing is sent, no token either."""
    elsewhere = Credentials.of(ca_file=secured.authority.certificate, server_name="other.example")
    async with connect(Endpoint(secured.system.scheduler, elsewhere)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await SchedulerServiceStub(channel).GetOccupancy(
                scheduler_pb2.GetOccupancyRequest(), timeout=REFUSED_S
            )
    assert "UNREACHABLE" == from_rpc_error(refused.value).reason
