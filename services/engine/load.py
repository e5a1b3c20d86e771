"""How many requests are under way, by what they are about. Pure."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

from services.engine.sequence import Phase


class Load(NamedTuple):
    """The requests under way: computed already, or waiting: for memory, a place in the batch, or their first chunk."""

    running: int
    waiting_for_memory: int
    waiting_for_batch: int
    waiting_for_chunk: int

    @classmethod
    def of(cls, phases: Iterable[Phase], max_batch: int) -> Load:
        """As they stand.

        Args:
            phases: Of all of them.
            max_batch: Most requests under way at once.
        """
        counts = collections.Counter(phases)
        waiting, parked = counts[Phase.WAITING], counts[Phase.PREEMPTED]
        running = counts.total() - waiting - parked
        without_place = max(0, waiting - max(0, max_batch - running))
        return cls(running, parked, without_place, waiting - without_place)
