"""Values that a newer version has written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.common.ids import Cohort, Revision
from services.common.registry.records import EngineRecord, GatewayRecord

PROCESS = {"id": "p", "instance_id": "i", "address": "h:1", "host": "h", "start_time": "t"}
GENERATION = {"model": "m", "cohort": "stable", "revision": 1, "artifact_id": "a", "state": "ACTIVE"}


@pytest.mark.parametrize("newer", [{"cohort": "shadow"}, {"state": "HIBERNATING"}])
def test_what_an_engine_says_of_a_cohort_or_state_that_is_not_known_is_left_out(
    newer: dict[str, Any],
) -> None:
    """The rest of its record counts.

    Fault injection: turns red when `_known` looks at one of the two fields alone.
    """
    progress = {
        "model": "m",
        "cohort": "stable",
        "desired_revision": 2,
        "actual_revision": 2,
        "state": None,
        "state_version": 1,
        "applied_sequence_id": 2,
        "expected_next_id": 3,
    }
    said = {
        **PROCESS,
        "runtime_build": "r",
        "generations": [{**GENERATION, **newer, "revision": 7}, GENERATION],
        "progress": [{**progress, **newer}, progress],
    }
    record = EngineRecord.decode(json.dumps(said).encode())
    assert [(Cohort.STABLE, 1)] == [(each.cohort, each.revision) for each in record.generations]
    assert [(Cohort.STABLE, None)] == [(each.cohort, each.state) for each in record.progress]


def test_what_a_gateway_says_of_a_cohort_that_is_not_known_is_left_out() -> None:
    """An older one names no cohort, which is none that is not known.

    Fault injection: turns red when `GatewayRecord` leaves nothing out.
    """
    failures: list[dict[str, Any]] = [
        {"artifact_id": "a", "error": "e", "model": "m", "cohort": "shadow", "revision": 1},
        {"artifact_id": "b", "error": "e", "model": "m", "cohort": "canary", "revision": 2},
        {"artifact_id": "c", "error": "e"},
    ]
    record = GatewayRecord.decode(json.dumps({**PROCESS, "text_failures": failures}).encode())
    assert [("b", Revision(2)), ("c", Revision(0))] == [
        (each.artifact_id, each.revision) for each in record.text_failures
    ]


@pytest.mark.parametrize("entry", [1, "x", None, {"state": ["x"]}, {"cohort": {}}])
def test_what_is_no_entry_makes_no_record(entry: Any) -> None:
    """It is a ValueError, as of every value that is no record.

    Fault injection: turns red when `_known` takes every entry for an object, or looks it up in a set.
    """
    said = {**PROCESS, "runtime_build": "r", "generations": [entry]}
    try:
        record = EngineRecord.decode(json.dumps(said).encode())
    except ValueError:
        return
    assert () == record.generations
