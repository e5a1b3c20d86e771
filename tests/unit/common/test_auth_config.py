"""A process that more than its host can reach asks who calls, or does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.auth.role import Role
from services.common.config import ProcessConfig
from services.common.ending import REFUSED
from services.common.rpc.address import Address
from tests.credentials import hand_out, write_secret


class Config(ProcessConfig):
    role = "gateway"


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.7:1", "gateway:1", "127.0.0.1.example:1"])
def test_beyond_loopback_nobody_starts_unasked(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line with both ways out.

    Fault injection: turns red when `_check_door` is left out.
    """
    with pytest.raises(SystemExit) as refused:
        Config.load(["--listen", listen])
    assert REFUSED == refused.value.code
    line = capsys.readouterr().err
    assert f"listen {listen} is beyond loopback" in line
    assert "--callers-file" in line
    assert "--auth off" in line
    assert 1 == len(line.splitlines())


def test_credentials_or_a_word_of_the_operator_are_enough(tmp_path: Path) -> None:
    """With a file of callers, or told that the network keeps others out."""
    callers = str(hand_out(tmp_path).callers_file)
    everywhere = ["--listen", "0.0.0.0:1"]
    assert Config.load([*everywhere, "--callers-file", callers]).door.access is not None
    assert Config.load([*everywhere, "--auth", "off"]).door.access is None


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0"])
def test_on_loopback_nobody_is_asked_unless_told(listen: str, tmp_path: Path) -> None:
    """One machine's system needs no tokens; with a file of callers it asks there, too."""
    assert Config.load(["--listen", listen]).door.access is None
    asking = Config.load(["--listen", listen, "--callers-file", str(hand_out(tmp_path).callers_file)])
    assert asking.door.access is not None


def test_files_that_are_none_are_refused_at_birth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not at the first call: which setting, which file, what to do."""
    handed = hand_out(tmp_path)
    handed.callers_file.chmod(0o644)
    for flag, file, words in (
        ("--callers-file", handed.callers_file, "chmod 600"),
        ("--token-file", tmp_path / "absent", "no such file"),
    ):
        with pytest.raises(SystemExit):
            Config.load([flag, str(file)])
        line = capsys.readouterr().err
        assert f"{flag} {file}" in line
        assert 1 == line.count(flag)
        assert words in line


def test_the_event_names_files_and_tells_no_token(tmp_path: Path) -> None:
    """What is logged of the configuration are paths."""
    handed = hand_out(tmp_path)
    event = Config(callers_file=handed.callers_file, token_file=handed.system_file).as_event()
    assert str(handed.system_file) == event["token_file"]
    assert not any(token in str(event) for token in handed.tokens.values())


def test_an_address_knows_whether_it_is_this_hosts_alone() -> None:
    """Wildcards, names and addresses of a network are not."""
    assert Address.parse("[::1]:1").is_loopback
    assert not Address.parse("*:1").is_loopback
    assert not Address.parse("localhost.example:1").is_loopback


def test_a_process_knows_that_its_token_is_of_another_role(tmp_path: Path) -> None:
    """From its own callers file, at its start; what that does not name others may know."""
    handed = hand_out(tmp_path)
    config = Config(**handed.settings())
    assert "" == config.token_objection
    write_secret(handed.system_file, handed.tokens[Role.INFER])
    assert "is of infer, role infer" in config.token_objection
    assert "halogen token" in config.token_objection
    write_secret(handed.system_file, "unknown")
    assert "" == config.token_objection == Config(token_file=handed.system_file).token_objection
