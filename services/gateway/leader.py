"""The scheduler that leads, as the registry tells."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from services.common.registry import keys
from services.common.registry.leader_records import LeaderRecord
from services.common.registry.view import View


class Leader(NamedTuple):
    """Who leads in one term, and where it is reached."""

    address: str
    term: int


class Leaders:
    """Finds the leader of the day, and whoever follows it.

    Args:
        view: Mirror of leader/.
    """

    def __init__(self, view: View[LeaderRecord]) -> None:
        self._view = view

    @property
    def current(self) -> Leader | None:
        """The last one heard of: an outage of the registry takes nobody's leader away."""
        record = self._view.records.get(keys.SCHEDULER_LEADER)
        return Leader(record.address, record.term) if record else None

    async def after(self, term: int) -> Leader:
        """Waits until somebody leads in a higher term than `term`."""
        leader = self.current
        async with contextlib.aclosing(self._view.changes()) as changes:
            while leader is None or leader.term <= term:
                await anext(changes)
                leader = self.current
        return leader
