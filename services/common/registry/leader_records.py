"""The registry's records of who leads."""

from __future__ import annotations

from services.common.ids import InstanceId, ProcessId
from services.common.registry.record import Record


class LeaderRecord(Record):
    """leader/scheduler: who leads, and in which term; there while the leader's lease is."""

    id: ProcessId
    instance_id: InstanceId
    address: str
    term: int  # at least 1


class LastTerm(Record):
    """terms/scheduler: compared and raised with every new leadership."""

    term: int
