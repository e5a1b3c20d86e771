"""What has happened in a random run, over many engines."""

from __future__ import annotations

import collections
from typing import Final

from services.engine.preemption import Way
from tests.unit.engine.oracle import Oracle
from tests.unit.engine.watched_engine import WatchedEngine

ENDS: Final = frozenset(
    (
        *(
            "length",
            "stop",
            "Cancelled",
            "DeadlinePassed",
            "InternalError",
            "PreconditionFailed",
            "Unavailable",
        ),
        *("refused InvalidRequest", "refused Overloaded"),
    )
)


class Seen:
    """Counts.

    Attributes:
        oracle: Judges requests, and counts how they ended.
        preempted: Requests that were set back, by way.
        steps: Steps that were computed.
        full_steps: Those after which the arena was full.
        found_tokens: Of prompts, that were not computed.
        engines: That were started, and stopped.
        replaced: Generations.
    """

    def __init__(self) -> None:
        self.oracle = Oracle()
        self.preempted: collections.Counter[Way] = collections.Counter()
        self.steps = self.full_steps = self.found_tokens = self.engines = self.replaced = 0

    def note(self, engine: WatchedEngine) -> None:
        """It has stopped."""
        self.engines += 1
        self.preempted += engine.desk.preemptions
        self.steps += engine.steps
        self.full_steps += engine.full_steps
        self.found_tokens += engine.prefixes.found_tokens

    @property
    def missing(self) -> frozenset[str]:
        """What is yet to happen, of all that may."""
        return ENDS - self.oracle.ends.keys() or frozenset(
            way.value for way in Way if not self.preempted[way]
        )

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.oracle.ends.items()))
        return (
            f"{self.oracle.ends.total()} requests ({ends}), "
            f"{self.preempted[Way.SWAP]} swapped and {self.preempted[Way.RECOMPUTE]} computed again, "
            f"{self.engines} engines, {self.replaced} generations replaced, {self.found_tokens} tokens found, "
            f"{self.steps} steps, {self.full_steps / max(1, self.steps):.0%} with a full arena"
        )
