"""What others wrote, shown by the commands as it is."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli import publish
from services.cli.console import PlainConsole, byte_progress
from services.cli.control_client import ControlClient
from services.cli.history_command import _table
from services.cli.status import _models

WHO, WHY = "\x1b[31mada\nbob\0", "[/x] [bold]because[/bold] :warning: \x9b2J\u202e"
SHOWN = ("\\u001b[31mada\\u000abob\\u0000", "[/x] [bold]because[/bold] :warning: \\u009b2J\\u202e")


def shown(thing: object) -> str:
    console = PlainConsole(file=io.StringIO(), width=300)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "table",
    [
        _table("m", [pb.HistoryEntry(revision=1, cohort="stable", who=WHO, why=WHY)]),
        _models(pb.Status(cohorts=[pb.CohortStatus(model="m", cohort="stable", who=WHO, why=WHY)])),
    ],
    ids=["history", "status"],
)
def test_what_was_said_of_a_publish_is_shown_as_it_is(table: object) -> None:
    """In one line, and as no command to the terminal, whatever an older gateway took.

    Fault injection: turns red when tables take their cells for markup, or as they come.
    """
    said = shown(table)
    assert [True, True] == [words in said for words in SHOWN]
    assert "\x1b[31m" not in said


def test_a_message_is_shown_as_it_is() -> None:
    """A failure's, for example; it may have several lines."""
    assert "it says [/x]\n  \\u001b]0;title\\u0007 :warning:\n" == shown(
        "it says [/x]\n  \x1b]0;title\x07 :warning:"
    )


class Standing(ControlClient):
    """Of a gateway that has verified everything already."""

    def __init__(self) -> None:
        pass

    async def register(
        self, request: pb.RegisterArtifactRequest
    ) -> AsyncGenerator[pb.RegisterArtifactResponse, None]:
        yield pb.RegisterArtifactResponse(artifact_id="a" * 64, state=pb.ARTIFACT_STATE_READY)


async def test_what_is_verified_already_has_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to measure."""
    remedy = publish._Remedy("", "")
    with byte_progress() as progress:
        await publish._verified(Standing(), pb.RegisterArtifactRequest(), progress, remedy)
    assert "verify" not in capsys.readouterr().err
