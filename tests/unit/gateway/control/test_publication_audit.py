"""The audit of publications stays bounded: the oldest of a model go to the log as the newest comes."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from structlog.types import EventDict

from services.common.ids import ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import AuditRecord
from services.common.registry.store import Entry, Head
from services.gateway.control import Control
from services.gateway.publication_audit import MAX_DROPPED_OF_KIND, MAX_RECORDS_OF_MODEL, outlived
from tests.unit.gateway.control.builders import MODEL, CutStore, manifest, order, registered


def records(*revisions: int) -> list[Entry]:
    return [Entry(keys.audit(MODEL, Revision(each)), b"{}", 1) for each in revisions]


def head(entries: list[Entry]) -> Head:
    return Head(len(entries), tuple(entries[:MAX_DROPPED_OF_KIND]))


def test_a_model_keeps_its_last_publications() -> None:
    """Whichever revisions they have: a registry that lost some goes on above them."""
    last = records(*range(2, MAX_RECORDS_OF_MODEL), 5_000)
    assert () == outlived(head(last))
    assert tuple(records(1, 2)) == outlived(head([*records(1), *last, *records(6_000)]))


def test_what_piled_up_goes_in_several_publishes() -> None:
    """None has more operations than etcd takes in one transaction."""
    piled = records(*range(1, MAX_RECORDS_OF_MODEL + 1_001))
    assert piled[:MAX_DROPPED_OF_KIND] == list(outlived(head(piled)))


@pytest.fixture
def keeps_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.publication_audit.MAX_RECORDS_OF_MODEL", 2)


async def publish(control: Control, whys: str) -> None:
    await registered(control, manifest("a"))
    for why in whys:
        await control.publications.publish(order(manifest("a").id)._replace(why=why))


async def kept(store: CutStore) -> list[str]:
    """Why, of every record of the model."""
    return [AuditRecord.decode(entry.value).why for entry in (await store.list(keys.audits(MODEL))).entries]


def exported(logs: list[EventDict]) -> list[str]:
    return [AuditRecord.decode(e["record"]).why for e in logs if e["event"] == "audit_exported"]


@pytest.mark.usefixtures("keeps_two")
async def test_the_oldest_publication_goes_as_the_newest_comes(control: Control, store: CutStore) -> None:
    """In its transaction, and what is gone stands in the log; those of a model whose name is longer stay.

    Fault injection: turns red when `plan` leaves out the deletions, or `keys.audits` the slash.
    """
    others = keys.audit(ModelName(f"{MODEL}2"), Revision(1))
    await store.put(others, b"{}")
    with capture_logs() as logs:
        await publish(control, "abcd")
    assert (["c", "d"], ["a", "b"]) == (await kept(store), exported(logs))
    assert await store.get(others) is not None


@pytest.mark.usefixtures("keeps_two")
@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_publish_that_was_cut_off_exports_once(control: Control, store: CutStore, how: str) -> None:
    """What was not applied has dropped nothing. Fault injection: turns red when `_try` exports before it commits."""
    await publish(control, "abc")
    store.cut = how
    with capture_logs() as logs:
        await publish(control, "d")
    assert (["c", "d"], ["b"]) == (await kept(store), exported(logs))
