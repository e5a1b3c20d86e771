"""Publishes end in order under any interleaving of gateways, engines and leaders, and whoever dies meanwhile."""

from __future__ import annotations

import itertools
import os
import random
from typing import Final

from services.common.registry import keys
from services.common.registry.publish_records import IntentRecord, PublishState
from services.common.registry.records import GenerationState as State
from tests.simulation.invariants import check, decoded
from tests.simulation.publishing import (
    ARTIFACTS,
    SimEngine,
    SimLeader,
    Steps,
    publish,
    random_order,
    tell_texts,
)
from tests.simulation.registry import SimRegistry

SCHEDULES: Final = int(os.environ.get("HALOGEN_SCHEDULES", "200"))
MOVES: Final = 250
_ANY: Final = (State.FETCHING, State.WARMING, State.ACTIVE, State.ACTIVE, State.FAILED)


class Schedule:
    """Two engines, a gateway, two leaders, and publishes that come and go; everything by one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.registry = SimRegistry()
        self.engines = [SimEngine(self.registry, name, self.chance) for name in ("e1", "e2")]
        self.leaders = [SimLeader(self.registry, timeout_s=10) for _ in range(2)]
        self.running: list[Steps] = []
        self.now_s = 0.0

    def run(self) -> None:
        moves = (
            self._publish,
            self._load,
            self._read,
            self._lead,
            self._look,
            self._crash,
            *[self._step] * 12,
        )
        for _ in range(MOVES):
            self.now_s += 1
            self.chance.choice(moves)()

    def settle(self) -> None:
        """No more faults: all runs to its end, and everybody sees everything and is ready."""
        for steps in self.running:
            list(steps)
        tell_texts(self.registry, ARTIFACTS)
        for engine in self.engines:
            engine.targets.catch_up()
            engine.act((State.ACTIVE,))
        (leader, _) = self.leaders
        for view in leader.views.values():
            view.catch_up()
        list(leader.act(self.now_s))

    def _publish(self) -> None:
        if self.chance.random() < 0.5:
            self.running.append(publish(self.registry, random_order(self.chance)))

    def _load(self) -> None:
        self.chance.choice(self.engines).act(_ANY)

    def _read(self) -> None:
        tell_texts(self.registry, tuple(self.chance.sample(ARTIFACTS, self.chance.randint(2, 3))))

    def _lead(self) -> None:
        self.running.append(self.chance.choice(self.leaders).act(self.now_s))

    def _look(self) -> None:
        views = [engine.targets for engine in self.engines]
        views += [view for leader in self.leaders for view in leader.views.values()]
        for view in views:
            view.move_on(self.chance)

    def _crash(self) -> None:
        """Somebody dies between two steps."""
        if self.running and self.chance.random() < 0.3:
            self.running.pop(self.chance.randrange(len(self.running)))

    def _step(self) -> None:
        if self.running:
            steps = self.chance.choice(self.running)
            try:
                next(steps)
            except StopIteration:
                self.running.remove(steps)


def test_publishes_end_in_order_in_every_schedule() -> None:
    """The invariants hold after every transaction, and when faults have stopped every publish has ended.

    Fault injection: turns red when `plan` compares no intent or supersedes nothing, or when `transaction` compares no
    target, not its revision, or does not ask whether it is pending.
    """
    ends = dict.fromkeys(PublishState, 0)
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        schedule.run()
        schedule.settle()
        states = schedule.registry.states
        for before, after in itertools.pairwise(states):
            try:
                check(before, after)
            except (AssertionError, KeyError) as broken:
                raise AssertionError(f"schedule {seed}: {broken}") from broken
        for intent in decoded(states[-1], keys.INTENTS, IntentRecord).values():
            ends[intent.state] += 1
    print(f"checks of order: {SCHEDULES} schedules, {ends}")
    assert 0 == ends.pop(PublishState.PENDING)
    assert all(ends.values())  # or the schedules would show little
