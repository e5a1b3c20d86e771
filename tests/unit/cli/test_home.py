"""A home is found from where one stands, held by one launcher, and its key is its owner's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli import run_state
from services.cli.console import CommandError
from services.cli.home import Home
from services.cli.run_state import Addresses
from services.cli.stack import process_id

ADDRESSES = Addresses(etcd="a:1", etcd_peer="a:2", loader="b:2", engine="c:3", scheduler="d:4", gateway="e:5")

HOLDER = """
from pathlib import Path
from services.cli import run_state
from services.cli.home import Home
home = Home(Path({root!r}))
with run_state.hold(home):
    run_state.save(home, run_state.Addresses(**{addresses!r}))
    print("held", flush=True)
    input()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / ".halogen")
    made.make()
    return made


def test_the_nearest_home_above_is_found(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands work from anywhere below the checkout."""
    below = home.root.parent / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.delenv("HALOGEN_HOME", raising=False)
    assert home == Home.find()


def test_a_home_asked_for_wins(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag over the variable over the search."""
    monkeypatch.setenv("HALOGEN_HOME", str(tmp_path / "other"))
    assert (home, Home(tmp_path / "other")) == (Home.find(home.root), Home.find())


def test_the_ticket_key_is_made_once_for_its_owner_only(home: Home) -> None:
    """32 random bytes, mode 600, the same at the second call."""
    first = home.ticket_key().read_bytes()
    assert (32, first) == (len(first), home.ticket_key().read_bytes())
    assert 0o600 == stat.S_IMODE(home.ticket_key().stat().st_mode)


def test_a_home_has_an_id_of_its_own(home: Home, tmp_path: Path) -> None:
    """The same at every call, another in another home."""
    other = Home(tmp_path / "other")
    other.make()
    assert home.system_id() == home.system_id()
    assert home.system_id() != other.system_id()
    assert f"gateway-{home.system_id()}" == process_id(home, "gateway")


def test_a_running_system_is_found_and_forgotten(home: Home) -> None:
    """The state is there while the launcher holds the home, and not after."""
    assert run_state.running(home) is None
    with run_state.hold(home):
        run_state.save(home, ADDRESSES)
        state = run_state.running(home)
        assert state is not None
        assert (os.getpid(), ADDRESSES) == (state.pid, state.addresses)
    assert run_state.running(home) is None


def test_two_launchers_cannot_hold_one_home(home: Home) -> None:
    """The second is told how to stop the first."""
    with run_state.hold(home), pytest.raises(CommandError, match="halogen down"), run_state.hold(home):
        pass


def test_the_state_of_a_killed_launcher_is_not_believed(home: Home) -> None:
    """kill -9 leaves the file; the lock tells the truth."""
    code = HOLDER.format(root=str(home.root), addresses=ADDRESSES.model_dump())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        assert b"held\n" == launcher.stdout.readline()
        assert run_state.running(home) is not None
        launcher.kill()
    assert home.state_file.exists()
    assert run_state.running(home) is None


def test_stop_ends_the_launcher(home: Home) -> None:
    """`down` asks by SIGTERM and waits; without a launcher it says so."""
    code = HOLDER.format(root=str(home.root), addresses=ADDRESSES.model_dump())
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        launcher.stdout.readline()
        assert run_state.stop(home, patience_s=10) is True
    assert run_state.stop(home, patience_s=10) is False
