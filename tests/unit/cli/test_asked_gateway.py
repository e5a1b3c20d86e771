"""Whom a command asks: never somebody else's system in place of one's own that is stopped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import asked_gateway, run_state
from services.cli.console import CommandError
from services.cli.control_client import Order
from services.cli.home import Home
from services.cli.main import app
from services.cli.publish import publish
from services.cli.run_state import Addresses
from services.cli.unpublish import unpublish
from services.common.errors import Unavailable
from tests.tiny_checkpoints import make_tiny_artifact

ADDRESSES = Addresses(etcd="a:1", etcd_peer="a:2", loader="b:2", engine="c:3", scheduler="d:4", gateway="e:5")
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below no home, none named."""
    monkeypatch.chdir(tmp_path)
    for name in ("HALOGEN_HOME", "HALOGEN_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / ".halogen")
    made.make()
    return made


def test_without_a_home_the_usual_address_is_asked(tmp_path: Path) -> None:
    """Somebody else may serve there, and that is what was asked for."""
    assert asked_gateway.USUAL_ADDRESS == asked_gateway.choose(None, None).address


def test_a_running_system_is_asked_and_given_time_to_start(home: Home) -> None:
    """A gateway named by its address is there or not; one that a launcher starts may come."""
    with run_state.hold(home):
        run_state.save(home, ADDRESSES)
        local, named = asked_gateway.choose(None, None), asked_gateway.choose(NOBODY, None)
        assert str(home.store) == asked_gateway.local_store(None)
    assert ("e:5", NOBODY) == (local.address, named.address)
    assert named.patience_s < local.patience_s


def test_a_stopped_system_is_not_replaced_by_anothers(home: Home, tmp_path: Path) -> None:
    """Found or named: the line says how to start it. Fault injection: `choose` falls back to the usual address."""
    for asked, named in ((None, home.root), (tmp_path / "absent", tmp_path / "absent")):
        with pytest.raises(
            CommandError, match=rf"no local system runs from {named}; start it with: halogen up"
        ):
            asked_gateway.choose(None, asked)
        with pytest.raises(CommandError, match=rf"runs from {named}.*--store"):
            asked_gateway.local_store(asked)


async def test_where_nobody_answers_publishing_does_not_hang(tmp_path: Path) -> None:
    """Neither way; nothing was copied. Fault injection: `publish` does not `connect` first."""
    artifact, _ = make_tiny_artifact(tmp_path)
    order, begun = Order("m", "stable", "", who="w", why="y"), time.monotonic()
    with pytest.raises(Unavailable, match=r"nobody answers at 127\.0\.0\.1:1 within 0\.2 s"):
        await publish(
            NOBODY, order, artifact, str(tmp_path / "store"), reverify=False, wait_s=0, patience_s=0.2
        )
    with pytest.raises(Unavailable, match="nobody answers"):
        await unpublish(NOBODY, order, wait_s=0, patience_s=0.2)
    assert time.monotonic() - begun < 30
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", [["publish", "m", "artifact"], ["abort", "m", "--why", "w"]])
def test_a_name_that_says_nothing_is_not_taken_for_none(command: list[str]) -> None:
    """Scripts give --who "$NAME": an audit in another name than they mean helps nobody.

    Fault injection: turns red when `WhoOption` has no callback.
    """
    result = CliRunner().invoke(app, [*command, "--who", " "])
    assert (2, True) == (result.exit_code, "say who does this" in result.stderr)


@pytest.mark.parametrize("command", [["publish", "m", "artifact"], ["unpublish", "m", "--why", "w"]])
def test_no_time_to_wait_is_negative(command: list[str]) -> None:
    """Refused with the range, before anything is asked."""
    result = CliRunner().invoke(app, [*command, "--wait", "-1"])
    assert (2, True) == (result.exit_code, "0" in result.stderr)
