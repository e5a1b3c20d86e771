"""Qualifications: what operators say of an artifact on a build, on record beside it and never in its id."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.common.errors import Conflict, InvalidRequest, NotFound
from services.common.ids import ArtifactId
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.qualification_records import QualificationRecord
from services.gateway.control import Control
from services.gateway.qualifications import MAX_STATEMENTS, QualifyOrder
from tests.unit.gateway.control.builders import CutStore, read

ARTIFACT = ArtifactId("a" * 64)
ONE, OTHER = "1" * 64, "2" * 64


def said(**changes: Any) -> QualifyOrder:
    nothing = QualifyOrder(ARTIFACT, "", None, None, "", "", who="ada", why="test")
    return nothing._replace(**changes)


async def record(store: MemoryStore, build: str = ONE) -> None:
    """As an engine writes it that has the artifact ACTIVE."""
    made = QualificationRecord(
        runtime_build=f"halogen {build[:1]}",
        graph_root="f" * 64,
        kernels={"name": "k"},
        device={"class": "cpu"},
    )
    await store.put(keys.qualification(ARTIFACT, build), made.encode())


async def test_what_is_said_stays_until_something_else_is_said(control: Control, store: MemoryStore) -> None:
    """Statements are appended; what one leaves out stands as it was."""
    await record(store)
    await control.qualifications.qualify(said(accuracy=0.5, data_set="d1", approved=True))
    await control.qualifications.qualify(said(git_commit="c0ffee1", who="bob"))
    last = await control.qualifications.qualify(said(accuracy=0.75, approved=False))
    assert (ARTIFACT, ONE) == (last.artifact_id, last.build)
    assert (False, 0.75, "d1", "c0ffee1") == (
        last.record.approved,
        last.record.accuracy,
        last.record.data_set,
        last.record.git_commit,
    )
    assert ["ada", "bob", "ada"] == [each.who for each in last.record.statements]
    assert last.record == await read(store, keys.qualification(ARTIFACT, ONE), QualificationRecord.decode)
    assert "k" == last.record.kernels["name"]


async def test_of_several_builds_one_is_named(control: Control, store: MemoryStore) -> None:
    """By the beginning of its root; the message tells which there are."""
    for build in (ONE, OTHER):
        await record(store, build)
    with pytest.raises(InvalidRequest, match=r"111111111111 \(halogen 1\), 222222222222 \(halogen 2\)"):
        await control.qualifications.qualify(said(approved=True))
    with pytest.raises(NotFound, match="no build '3'"):
        await control.qualifications.qualify(said(approved=True, build="3"))
    assert OTHER == (await control.qualifications.qualify(said(approved=True, build="2"))).build


async def test_what_no_engine_has_served_has_no_record(control: Control, store: MemoryStore) -> None:
    """An artifact qualifies on a class of device and a runtime: it has to run there first."""
    with pytest.raises(NotFound, match="publish it first"):
        await control.qualifications.qualify(said(approved=True))
    assert () == (await store.list("")).entries


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "say something"),
        ({"accuracy": 1.5}, "0 to 1"),
        ({"accuracy": float("nan")}, "0 to 1"),
        ({"data_set": "x" * 1001}, "at most 1000"),
        ({"data_set": "mm\nlu"}, "data_set holds the control character"),
        ({"git_commit": "main"}, "7 to 64 hexadecimal digits.*git rev-parse HEAD"),
        ({"git_commit": "c0ffee"}, "7 to 64"),
        ({"git_commit": "c" * 65}, "7 to 64"),
        ({"approved": True, "who": ""}, "who"),
        ({"approved": True, "artifact_id": "x"}, "64 lower-case"),
    ],
)
async def test_what_says_nothing_or_too_much_is_refused(
    control: Control, changes: dict[str, Any], expected: str
) -> None:
    """Before the registry is asked."""
    with pytest.raises(InvalidRequest, match=expected):
        await control.qualifications.qualify(said(**changes))


async def test_statements_at_once_are_all_kept_up_to_a_bound(control: Control, store: MemoryStore) -> None:
    """Compare-and-set, tried again; a full record says so. Turns red when: qualify puts without a condition."""
    await record(store)
    await asyncio.gather(*(control.qualifications.qualify(said(git_commit=f"c0ffee{i}")) for i in range(8)))
    made = await read(store, keys.qualification(ARTIFACT, ONE), QualificationRecord.decode)
    assert isinstance(made, QualificationRecord)
    assert {f"c0ffee{i}" for i in range(8)} == {each.git_commit for each in made.statements}
    full = made.model_copy(update={"statements": made.statements[:1] * MAX_STATEMENTS})
    await store.put(keys.qualification(ARTIFACT, ONE), full.encode())
    with pytest.raises(Conflict, match="the most"):
        await control.qualifications.qualify(said(approved=True))


# Turns red when: Qualifications.qualify lets Ambiguous pass, or adds without a look at what is on record.
@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_statement_whose_answer_was_lost_is_written_once(
    control: Control, store: CutStore, how: str
) -> None:
    """Applied or not: the registry is read back, and whoever asks again adds nothing."""
    await record(store)
    store.cut = how
    for _ in range(2):
        told = await control.qualifications.qualify(said(approved=True))
    assert [True] == [each.approved for each in told.record.statements]


async def test_what_was_said_before_something_else_can_be_said_again(
    control: Control, store: MemoryStore
) -> None:
    """An approval after it was withdrawn is news."""
    await record(store)
    for approved in (True, False, True):
        told = await control.qualifications.qualify(said(approved=approved))
    assert [True, False, True] == [each.approved for each in told.record.statements]
