"""The records of publications, audit/, intents/ and commits/, kept within bounds: which go when one more comes, and where to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from services.common.registry.store import Entry, Head
from services.gateway.artifact_audit import MAX_DROPPED

MAX_RECORDS_OF_MODEL: Final = 1_000
MAX_DROPPED_OF_KIND: Final = MAX_DROPPED // 3  # three kinds go in one transaction

log = structlog.get_logger()


def outlived(present: Head) -> tuple[Entry, ...]:
    """The records that go in the transaction that writes one more: the oldest of more than a model's last 1,000.

    Args:
        present: Those of one model and kind, whose keys' order is that of the revisions: the first are the oldest.
    """
    excess = max(0, present.total + 1 - MAX_RECORDS_OF_MODEL)
    return present.entries[:excess][:MAX_DROPPED_OF_KIND]


def export(event: str, gone: Iterable[Entry]) -> None:
    """Leaves records that are in the registry no more to the log, as they were."""
    for entry in gone:
        log.info(event, key=entry.key, record=entry.value.decode())
