"""The audit of artifacts stays bounded, and never loses what explains how an artifact stands."""

from __future__ import annotations

import pytest

from services.common.errors import CorruptData
from services.common.ids import ArtifactId, ModelName
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import ArtifactAuditRecord
from services.gateway.artifact_audit import MAX_DROPPED, MAX_RECORDS, MAX_RECORDS_OF_ARTIFACT, outlived
from services.gateway.control import Control
from tests.unit.gateway.control.builders import Loader, manifest, registered


def key(artifact: int, number: int) -> str:
    return keys.artifact_audit(ModelName("m"), ArtifactId(f"{artifact:064x}"), number)


def test_below_the_bounds_nothing_goes() -> None:
    """Of the artifact and of all."""
    own = [key(1, number) for number in range(1, MAX_RECORDS_OF_ARTIFACT)]
    assert () == outlived(own, key(1, 99))
    others = [key(2 + number, number) for number in range(MAX_RECORDS - MAX_RECORDS_OF_ARTIFACT)]
    assert () == outlived([*others, *own], key(1, MAX_RECORDS))


def test_an_artifact_keeps_its_last_records() -> None:
    """In the order of their numbers, whatever the others have."""
    own = [key(1, number) for number in range(1, MAX_RECORDS_OF_ARTIFACT + 2)]
    assert (key(1, 1), key(1, 2)) == outlived([*reversed(own), key(0, 0), key(2, 5)], key(1, 99))


# Turns red when: `outlived` takes the oldest without a look at which are an artifact's last.
def test_all_artifacts_together_keep_so_many_but_everyones_last() -> None:
    """The oldest that a later one of the same artifact has superseded go; where there is none, nothing does."""
    once = [key(artifact, artifact) for artifact in range(MAX_RECORDS - 3)]
    twice = [key(MAX_RECORDS, 5_000), key(MAX_RECORDS, 5_001), key(MAX_RECORDS, 5_002)]
    assert (key(MAX_RECORDS, 5_000),) == outlived([*once, *twice], key(MAX_RECORDS + 1, 6_000))
    alone = [key(artifact, artifact) for artifact in range(MAX_RECORDS + 50)]
    assert () == outlived(alone, key(MAX_RECORDS + 50, 6_000))


def test_what_piled_up_goes_in_several_transactions() -> None:
    """None of them has more operations than etcd takes, and the coming record is in none."""
    piled = {key(artifact, 10 * number + artifact) for artifact in range(5) for number in range(1_000)}
    for number in range(100_000, 100_060):
        going = outlived(piled, key(7, number))
        assert len(going) <= MAX_DROPPED
        piled = (piled - set(going)) | {key(7, number)}
    assert MAX_RECORDS == len(piled)
    assert {key(artifact, 9_990 + artifact) for artifact in range(5)} < piled
    assert MAX_RECORDS_OF_ARTIFACT == sum("7/" in each for each in piled)


# Turns red when: Artifacts._conclude writes the verdict without what `outlived` tells.
async def test_the_oldest_go_as_the_newest_comes(
    control: Control, store: MemoryStore, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One artifact verified again and again: its last records are there, in one transaction with the verdict."""
    monkeypatch.setattr("services.gateway.artifact_audit.MAX_RECORDS_OF_ARTIFACT", 3)
    loader.failure = CorruptData("bad")
    for why in "abcde":
        await registered(control, manifest("a"), reverify=True, why=why)
    records = [ArtifactAuditRecord.decode(e.value) for e in (await store.list(keys.ARTIFACT_AUDIT)).entries]
    assert ["c", "d", "e"] == [record.why for record in records]
