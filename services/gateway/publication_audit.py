"""The records of publications, audit/, intents/ and commits/, kept within bounds: which go when one more comes, and where to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import structlog

from services.common.ids import ArtifactId, Cohort
from services.common.registry import keys
from services.common.registry.publish_records import IntentRecord, PublishState
from services.common.registry.store import Entry, Head
from services.gateway.artifact_audit import MAX_DROPPED

MAX_RECORDS_OF_MODEL: Final = 1_000
MAX_DROPPED_OF_KIND: Final = MAX_DROPPED // 3  # three kinds go in one transaction
_WAY_BACK: Final = 2  # artifacts of a cohort: the one that serves, and the one before

log = structlog.get_logger()


def outlived(present: Head) -> tuple[Entry, ...]:
    """The records that go in the transaction that writes one more: the oldest of more than a model's last 1,000.

    Args:
        present: Those of one model and kind, whose keys' order is that of the revisions: the first are the oldest.
    """
    excess = max(0, present.total + 1 - MAX_RECORDS_OF_MODEL)
    return present.entries[:excess][:MAX_DROPPED_OF_KIND]


def is_full(present: Head) -> bool:
    """Whether one more makes others go."""
    return present.total >= MAX_RECORDS_OF_MODEL


def outlived_intents(present: Iterable[Entry]) -> tuple[Entry, ...]:
    """The same of intents, with which their commits go. What is needed yet stays, and keys that this build cannot read.

    Args:
        present: All of one model.
    """
    intents = sorted(entry for entry in present if keys.is_readable(entry.key))
    excess = min(max(0, len(intents) + 1 - MAX_RECORDS_OF_MODEL), MAX_DROPPED_OF_KIND)
    kept = _needed(intents) if excess else set()
    return tuple(entry for entry in intents if entry.key not in kept)[:excess]


def _needed(intents: Iterable[Entry]) -> set[str]:
    """The keys of intents that stay, however many came after.

    One that is PENDING is watched, and will end. The last of a cohort that was served, and the last of another artifact,
    are the way back: publishes that come to nothing do not take it away.
    """
    needed: set[str] = set()
    ways: defaultdict[Cohort, set[ArtifactId]] = defaultdict(set)
    for entry in sorted(intents, reverse=True):
        record = _read(entry)
        if record is None:
            continue
        way, artifact_id = ways[record.cohort], record.artifact_id
        if record.state is PublishState.PENDING:
            needed.add(entry.key)
        elif record.state is not PublishState.APPLIED or artifact_id is None:
            continue
        elif artifact_id not in way and len(way) < _WAY_BACK:
            needed.add(entry.key)
            way.add(artifact_id)
    return needed


def _read(entry: Entry) -> IntentRecord | None:
    """None where the value is no such record."""
    try:
        return IntentRecord.decode(entry.value)
    except ValueError:
        return None


def export(event: str, gone: Iterable[Entry]) -> None:
    """Leaves records that are in the registry no more to the log, as they were."""
    for entry in gone:
        log.info(event, key=entry.key, record=entry.value.decode())
