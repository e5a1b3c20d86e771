"""A generation as the engine that holds it knows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from services.common.backoff import Backoff
from services.common.ids import Revision
from services.common.registry.publish_records import Failure
from services.common.registry.records import GenerationState as State
from services.engine.generation import Generation
from services.engine.named import Pair


@dataclasses.dataclass(slots=True)
class HeldGeneration:
    """A generation, how it came here, and when something becomes due with it."""

    generation: Generation
    asked: Mapping[Pair, Revision]  # for whom it is loaded
    pauses: Backoff  # before it is loaded again, should gateways route to it and it fail
    is_loading: bool = True  # until its load has come to an end, whatever came of it
    tries: int = 0  # that have failed
    fault: Failure | None = None  # by which the last one has, until the next comes further
    allocating_since_s: float | None = None  # as if it had been without a pause
    waited_s: float = 0.0  # of its time, when that was paused last
    waits_for_room: bool = False  # its load has stopped for a `Proceed`
    has_files: bool = False  # it had, when it stopped
    has_drained: bool = False  # others had to go before it could be fetched
    is_resident: bool = False  # takes memory for its files and its model, or may do so by now
    is_disposed: bool = False
    drained_at_s: float = 0.0  # when no ticket for it can come in any more
    overdue_at_s: float | None = None  # when its streams may be ended, should others wait for its memory
    may_recover: bool = False  # it has FAILED, and not by what its artifact is
    retry_at_s: float | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for others to go."""
        return self.waits_for_room and self.generation.state is State.ALLOCATING

    def shown_revision(self, pair: Pair, latest: Revision) -> Revision | None:
        """Under which the pair's others are told of it: what has failed has failed for those who had asked by then."""
        return self.asked.get(pair) if self.generation.state is State.FAILED else latest

    def run_time(self, now_s: float) -> None:
        """Its time begins, or goes on, when it is ALLOCATING."""
        if self.generation.state is State.ALLOCATING and self.allocating_since_s is None:
            self.allocating_since_s = now_s - self.waited_s

    def pause_time(self, now_s: float) -> None:
        """Its files are fetched next, which may take as long as it takes."""
        assert self.allocating_since_s is not None
        self.waited_s, self.allocating_since_s = now_s - self.allocating_since_s, None

    def due_s(self, timeout_s: float) -> float | None:
        """When its drain may be over, another try begins, or, as a candidate, it is late by `timeout_s`.

        None where time changes nothing.
        """
        state = self.generation.state
        if state is State.DRAINING and not self.generation.users:
            return self.drained_at_s
        if state is State.FAILED:
            return self.retry_at_s
        if not state.is_loading or self.allocating_since_s is None:
            return None
        return self.allocating_since_s + timeout_s
