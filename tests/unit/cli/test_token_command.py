"""`halogen token` hands out tokens that processes take, and commands show them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.compound_option import compound
from services.cli.console import CommandError
from services.cli.main import app
from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tokens import Tokens
from services.common.token_file import read_token
from tests.credentials import hand_out, write_secret

GATEWAY_COMMANDS = (
    *("chat", "generate", "status", "publish", "unpublish", "rollback", "abort", "history", "watch"),
    *("push", "qualify", "inspect"),
)


def halogen(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_a_token_is_printed_once_and_its_line_added(tmp_path: Path) -> None:
    """The file tells digests only, is its owner's alone, and keeps those that are in it."""
    file = tmp_path / "callers"
    first = halogen("token", "infer", "team-a", "--callers-file", file).output.strip()
    told = json.loads(halogen("token", "admin", "ops", "--callers-file", file, "--json").output)
    tokens = Tokens.read(file)
    assert Principal("team-a", Role.INFER) == tokens.holder(first)
    assert Principal("ops", Role.ADMIN) == tokens.holder(told["token"])
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert first not in file.read_text()


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    """Nothing is written that processes would not read."""
    refused = halogen("token", "infer", "a b", "--callers-file", tmp_path / "callers")
    assert isinstance(refused.exception, CommandError)
    assert "is no name" in str(refused.exception)
    assert not (tmp_path / "callers").exists()
    nowhere = halogen("token", "infer", "a", "--callers-file", tmp_path / "no/callers")
    assert "can be written" in str(nowhere.exception)


@pytest.fixture
def _everybodys_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_everybodys_umask")
def test_a_token_goes_into_a_file_that_commands_take(tmp_path: Path) -> None:
    """Whatever the umask; nothing is printed, a file that is there is kept, and none is left of a failure.

    Fault injection: turns red when the file is made with the mode that a shell's redirection would give it.
    """
    callers, file = tmp_path / "callers", tmp_path / "own.token"
    made = halogen("token", "infer", "a", "--callers-file", callers, "--token-out", file)
    assert (0, "", 0o600) == (made.exit_code, made.output, stat.S_IMODE(file.stat().st_mode))
    assert Principal("a", Role.INFER) == Tokens.read(callers).holder(read_token(file))
    before = callers.read_text()
    again = halogen("token", "infer", "a", "--callers-file", callers, "--token-out", file)
    assert "give a --token-out" in str(again.exception)
    assert before == callers.read_text()
    nowhere = tmp_path / "no/callers"
    halogen("token", "infer", "a", "--callers-file", nowhere, "--token-out", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_line_is_added_behind_one_that_does_not_end(tmp_path: Path) -> None:
    """As editors leave them: both are callers then.

    Fault injection: turns red when the line is appended as it is.
    """
    handed = hand_out(tmp_path)
    assert not handed.callers_file.read_text().endswith("\n")
    fresh = halogen("token", "infer", "a", "--callers-file", handed.callers_file).output.strip()
    tokens = Tokens.read(handed.callers_file)
    assert Principal("a", Role.INFER) == tokens.holder(fresh)
    assert all(tokens.holder(token) for token in handed.tokens.values())


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        ("# callers\n\x00\xff not one of ours\n", 0o600, "line 2"),
        ("", 0o644, "chmod 600"),
    ],
)
def test_nothing_is_added_to_what_processes_would_refuse(
    content: str, mode: int, why: str, tmp_path: Path
) -> None:
    """Another file, or one that is open to others: told, and left as it is.

    Fault injection: turns red when `token` does not read the file first.
    """
    file = tmp_path / "callers"
    write_secret(file, content)
    file.chmod(mode)
    refused = halogen("token", "infer", "a", "--callers-file", file)
    assert isinstance(refused.exception, CommandError)
    assert why in str(refused.exception)
    assert content == file.read_text()


@pytest.mark.parametrize("command", GATEWAY_COMMANDS)
def test_every_command_that_asks_a_gateway_takes_a_token(command: str) -> None:
    """Also those that only may ask one."""
    told = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    assert "--token-file" in told
    assert "--address" in told


def test_a_token_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """Before anybody is called; also where a variable names the file."""
    handed = hand_out(tmp_path)
    handed.system_file.chmod(0o644)
    given = halogen("status", "--token-file", handed.system_file)
    named = CliRunner().invoke(app, ["status"], env={"HALOGEN_TOKEN_FILE": str(handed.system_file)})
    for result in (given, named):
        assert isinstance(result.exception, CommandError)
        assert "chmod 600" in str(result.exception)


def test_several_options_are_one_parameter() -> None:
    """What makes it may be made of several itself; what is not said keeps its default."""

    def inner(*, one: int = 1) -> int:
        return one

    @compound("made", inner)
    def outer(*, made: int, two: int = 2) -> tuple[int, int]:
        return made, two

    @compound("pair", outer)
    def command(name: str, *, pair: tuple[int, int], three: int = 3) -> tuple[str, tuple[int, int], int]:
        return name, pair, three

    assert ("n", (1, 2), 3) == command(name="n")
    assert ("n", (7, 8), 9) == command(name="n", one=7, two=8, three=9)
