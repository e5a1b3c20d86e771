"""What is kept under a model's revisions, intents/ or commits/, read as a list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import structlog

from services.common.ids import Revision
from services.common.registry import keys
from services.common.registry.record import Record
from services.common.registry.store import Entry

R = TypeVar("R", bound=Record)

log = structlog.get_logger()


def by_revision(entries: Iterable[Entry], record_type: type[R]) -> dict[Revision, R]:
    """The records, in order; what is none, or lies under a key that is none, is logged and left out, as a `View` does."""
    read: dict[Revision, R] = {}
    for key, value, _ in sorted(entries):
        try:
            read[keys.split_revision_key(key)[1]] = record_type.decode(value)
        except ValueError as failure:
            log.warning("registry_record_invalid", key=key, error=str(failure))
    return read
