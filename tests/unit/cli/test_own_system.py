"""A launcher talks to its own etcd and gateway, and to nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from halogen.v1 import control_pb2 as pb
from services.cli import own_system
from services.cli.console import CommandError
from services.cli.control_client import ControlClient
from services.cli.home import Home
from services.cli.run_state import Addresses
from services.cli.stack import process_id


class Gateway:
    """Answers as the gateway of that id."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def connect(self, patience_s: float) -> None:
        """It is there."""

    async def status(self, timeout_s: float) -> pb.Status:
        return pb.Status(answered_by=self._name)


@asynccontextmanager
async def etcd(answers: list[Any]) -> AsyncIterator[str]:
    """Answers in turn, the last for ever; yields host:port."""

    async def members(_: web.Request) -> web.Response:
        return web.json_response(answers.pop(0) if len(answers) > 1 else answers[0])

    app = web.Application()
    app.router.add_post("/v3/cluster/member/list", members)
    runner = web.AppRunner(app)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    try:
        yield site.name.removeprefix("http://")
    finally:
        await runner.cleanup()


async def check(home: Home, gateway: str, answers: list[Any], patience_s: float = 20) -> None:
    async with etcd(answers) as address:
        addresses = Addresses(
            etcd=address, etcd_peer="b:2", loader="c:3", engine="d:4", scheduler="e:5", gateway="f:6"
        )
        control = cast("ControlClient", Gateway(gateway))
        await own_system.check(control, home, addresses, patience_s)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / ".halogen")
    made.make()
    return made


def member(name: str) -> dict[str, Any]:
    return {"header": {}, "members": [{"ID": "1", "name": name}]}


async def test_the_homes_own_system_is_known(home: Home) -> None:
    """Also when etcd takes a moment."""
    answers = [{"error": "no leader"}, member(process_id(home, "etcd"))]
    await check(home, process_id(home, "gateway"), answers)


async def test_another_systems_etcd_is_refused(home: Home) -> None:
    """Its gateway is not even asked. Fault injection: `check` compares the gateway only."""
    with pytest.raises(CommandError, match=r"the etcd of another system answers \(etcd-00000000\)"):
        await check(home, process_id(home, "gateway"), [member("etcd-00000000")])


@pytest.mark.parametrize("name", ["gateway-00000000", ""])
async def test_another_systems_gateway_is_refused(home: Home, name: str) -> None:
    """Whatever it calls itself. Fault injection: `_compare` lets an empty name pass."""
    with pytest.raises(CommandError, match="the gateway of another system answers"):
        await check(home, name, [member(process_id(home, "etcd"))])


async def test_what_is_no_etcd_is_given_up(home: Home) -> None:
    """The line names the log."""
    with pytest.raises(CommandError, match=r"etcd does not answer .*etcd\.log"):
        await check(home, process_id(home, "gateway"), [{"no": "members"}], patience_s=0.3)
