"""`halogen token` hands out tokens that processes take, and commands show them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.compound_option import compound
from services.cli.console import CommandError
from services.cli.main import app
from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tokens import Tokens
from tests.credentials import hand_out

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
