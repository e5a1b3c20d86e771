"""When a publish counts as served, and what is said when it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.ask import Asking
from services.cli.console import CommandError
from services.cli.control_client import Order
from services.cli.main import app
from services.cli.publish import _kept, _Remedy, choose
from services.cli.published import Published
from services.common.client_options import Options
from services.common.errors import InvalidRequest

WANTED = Published("m", "stable", "a" * 64, 2)
ACTIVE = types_pb2.GENERATION_STATE_ACTIVE
FAILED = types_pb2.GENERATION_STATE_FAILED
WARMING = types_pb2.GENERATION_STATE_WARMING
MISMATCH = "another model (stage GRAPH, GRAPH_MISMATCH)"
BEGINNING = "revision 2 of m@stable"
FAILURE = pb.Failure(stage=types_pb2.STAGE_GRAPH, reason="GRAPH_MISMATCH", message="another model")


def status(serving: int, *generations: tuple[int, types_pb2.GenerationState]) -> pb.Status:
    """A status in which gateways serve a revision, and one engine for each generation given."""
    return pb.Status(
        cohorts=[pb.CohortStatus(model="m", cohort="stable", desired_revision=2, serving_revision=serving)],
        processes=[
            pb.ProcessStatus(
                role="engine",
                generations=[
                    pb.GenerationStatus(
                        model="m", cohort="stable", revision=revision, state=state, error="no room"
                    )
                ],
            )
            for revision, state in generations
        ],
    )


def failing(**named: Any) -> pb.Status:
    """A status in which a gateway cannot read what is named."""
    failure = pb.TextFailure(error="no tokenizer", **named)
    return pb.Status(processes=[pb.ProcessStatus(role="gateway", id="g", text_failures=[failure])])


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (status(2, (2, ACTIVE)), True),
        (status(3, (3, ACTIVE)), True),
        (status(2, (2, FAILED), (2, ACTIVE)), True),
        (status(1, (2, ACTIVE)), False),
        (status(2, (1, ACTIVE)), False),
        (status(2, (2, WARMING)), False),
        (status(2), False),
        (pb.Status(), False),
    ],
)
def test_served_is_routed_to_and_ready(seen: pb.Status, expected: bool) -> None:
    """Both the gateways' record and an engine that is there now; a later revision counts too."""
    assert expected == WANTED.is_served(seen)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (status(1, (2, FAILED)), "no engine can serve m: no room"),
        (status(1, (2, FAILED), (2, WARMING)), None),
        (status(1, (1, FAILED)), None),
        (status(1), None),
    ],
)
def test_it_fails_when_every_engine_that_tried_has_failed(seen: pb.Status, expected: str | None) -> None:
    """No engine having tried is no failure."""
    assert expected == WANTED.failure(seen)


def test_it_fails_at_once_when_a_gateway_cannot_read_it() -> None:
    """Every gateway must be ready, so one is enough."""
    assert "gateway g cannot serve m: no tokenizer" == WANTED.failure(failing(**WANTED._asdict()))


@pytest.mark.parametrize(
    "other", [{"artifact_id": "b" * 64}, {"revision": 1}, {"model": "n"}, {"cohort": "canary"}]
)
def test_what_a_gateway_failed_at_otherwise_is_no_failure_of_this_publish(other: dict[str, Any]) -> None:
    """Of another artifact, for another model, or before: the files may have come into the store since.

    Fault injection: turns red when `_is_of` compares the artifact's id alone.
    """
    assert WANTED.failure(failing(**WANTED._asdict() | other)) is None


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (pb.PublishOutcome(state=pb.PUBLISH_STATE_PENDING), None),
        (pb.PublishOutcome(state=pb.PUBLISH_STATE_APPLIED), None),
        (
            pb.PublishOutcome(state=pb.PUBLISH_STATE_SUPERSEDED, superseded_by=3),
            f"{BEGINNING} was SUPERSEDED by revision 3 before it was served; see: halogen history m",
        ),
        (
            pb.PublishOutcome(state=pb.PUBLISH_STATE_FAILED, failure=FAILURE),
            f"{BEGINNING} has FAILED, and halogen status says what serves: {MISMATCH}",
        ),
    ],
    ids=["pending", "applied", "superseded", "failed"],
)
def test_how_it_ended_is_said(outcome: pb.PublishOutcome, expected: str | None) -> None:
    """What came before it, or the stage and the reason; nothing while it is well."""
    assert expected == WANTED.defeat(outcome, pb.Status())


def test_what_the_leader_gave_up_has_failed() -> None:
    """Engines have let it go by then. Turns red when: `failure` asks engines and gateways only."""
    seen = status(1)
    seen.cohorts[0].desired_state = pb.PUBLISH_STATE_FAILED
    seen.cohorts[0].last_error.CopyFrom(FAILURE)
    assert "(stage GRAPH, GRAPH_MISMATCH)" in str(WANTED.failure(seen))
    assert WANTED._replace(revision=1).failure(seen) is None


def test_who_is_waited_for_is_named_when_the_time_is_over() -> None:
    """Where no engine says more."""
    seen = status(1)
    seen.cohorts[0].waiting_for[:] = ["engine-2", "gateway-1"]
    for role in ("gateway", "loader", "scheduler", "engine"):
        seen.processes.add(role=role)
    assert "after 5 s: waiting for engine-2, gateway-1; look at" in WANTED.lateness(seen, 5)


def test_who_is_missing_is_named() -> None:
    """The timeout's message says which processes are not there."""
    assert "no gateway, no loader, no scheduler is registered" in WANTED.lateness(status(1, (2, WARMING)), 5)


def test_what_an_engine_waits_for_is_named() -> None:
    """Memory that is short, for example: the timeout's message has the arithmetic."""
    seen = status(1, (2, WARMING))
    seen.processes[-1].generations[0].error = "needs 3 + holds 2 > 0.85 x limit 5 bytes of this host"
    for role in ("gateway", "loader", "scheduler", "engine"):
        seen.processes.add(role=role)
    assert "after 5 s: an engine waits: needs 3 + holds 2 > 0.85 x limit" in WANTED.lateness(seen, 5)


def test_what_a_gateway_failed_at_before_is_named_when_the_time_is_over() -> None:
    """One of an older version never says for which publish; the other processes are there."""
    seen = failing(artifact_id=WANTED.artifact_id)
    for role in ("engine", "loader", "scheduler"):
        seen.processes.add(role=role)
    assert "after 5 s: gateway g could not serve it before: no tokenizer; look" in WANTED.lateness(seen, 5)


@pytest.mark.parametrize(
    ("artifact_id", "cohort", "expected"),
    [
        ("a" * 64, "stable", Published("m", "stable", "a" * 64, 7)),
        ("b" * 64, "stable", None),
        ("a" * 64, "canary", None),
    ],
)
def test_only_a_publish_of_the_same_artifact_stands(
    artifact_id: str, cohort: str, expected: Published | None
) -> None:
    """`--once` keeps it; another artifact, or another cohort, gets a revision of its own."""
    seen = pb.Status(
        cohorts=[
            pb.CohortStatus(model="m", cohort="stable", desired_artifact_id="a" * 64, desired_revision=7)
        ]
    )
    assert expected == Published.standing(seen, Order("m", cohort, artifact_id, who="me", why="test"))


@pytest.mark.parametrize(
    ("serving", "engine", "is_kept"),
    [(0, WARMING, True), (0, FAILED, False), (2, ACTIVE, True), (2, FAILED, False)],
    ids=["under way", "failed", "served", "served no more"],
)
def test_a_publish_that_failed_is_not_kept(
    serving: int, engine: types_pb2.GenerationState, capsys: pytest.CaptureFixture[str], *, is_kept: bool
) -> None:
    """`--once` gives it a new revision, for only that is tried anew, and says why."""
    seen = status(serving, (2, engine))
    seen.cohorts[0].desired_artifact_id = WANTED.artifact_id
    kept = _kept(seen, Order("m", "stable", WANTED.artifact_id, who="me", why="test"))
    assert (WANTED if is_kept else None) == kept
    assert ("no engine can serve m: no room; publishing it anew" in capsys.readouterr().err) is not is_kept


def test_what_one_gateway_cannot_read_is_kept_while_it_is_served() -> None:
    """The others serve it: there is nothing to wait for."""
    seen = status(2, (2, ACTIVE))
    seen.cohorts[0].desired_artifact_id = WANTED.artifact_id
    seen.MergeFrom(failing(**WANTED._asdict()))
    assert WANTED == _kept(seen, Order("m", "stable", WANTED.artifact_id, who="me", why="test"))


def test_every_wish_is_an_option_of_the_client() -> None:
    """What the command line can say, the client can be told under the same name; silence is left out."""
    assert set(Asking._fields) <= Options.__annotations__.keys()
    assert {"temperature": 0.0, "model": "m"} == Asking(model="m", temperature=0.0).options()


def test_what_is_published_is_a_directory_or_else_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is named like an id is a directory; what is neither is refused with advice."""
    monkeypatch.chdir(tmp_path)
    name = "0123456789abcdef" * 4
    assert name == choose(name)
    assert not isinstance(choose(name), Path)
    (tmp_path / name).mkdir()
    (tmp_path / name / "manifest.json").touch()
    assert Path(name) == choose(name)
    assert name[:8] == choose(name[:8])
    for neither in (name[:7], name + "0", name.upper(), "absent"):
        with pytest.raises(CommandError, match="is no artifact directory"):
            choose(neither)


def test_what_is_unsigned_has_another_remedy_than_what_is_damaged() -> None:
    """One for each, with the command. Fault injection: turns red when `against` does not look at the reason."""
    remedy = _Remedy("Once its files are good", "halogen publish m DIR --reverify")
    assert "Then: halogen publish m DIR --reverify" == remedy.against("UNTRUSTED: not signed")
    assert "Once its files are good: halogen publish m DIR --reverify" == remedy.against("block 3 is bad")


@pytest.mark.parametrize(
    ("store", "expected"),
    [("", "store ''"), ("ftp://host/x", "http:// and https://"), ("s3://b", "file:///")],
)
def test_what_is_no_store_is_refused_before_anybody_is_asked(
    tmp_path: Path, store: str, expected: str
) -> None:
    """Nobody listens there. Turns red when: an empty --store is taken for none."""
    (tmp_path / "manifest.json").touch()
    arguments = ["publish", "m", str(tmp_path), "--address", "127.0.0.1:1", "--store", store]
    with pytest.raises(InvalidRequest, match=f"{expected}.*halogen publish MODEL ID"):
        raise CliRunner().invoke(app, arguments).exception or AssertionError
