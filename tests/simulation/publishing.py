"""Those who publish, make ready and commit, each a step at a time: between any two steps anybody else may act.

They decide by the modules that gateways and schedulers decide by, and write as those do.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Final

from services.common.errors import HalogenError
from services.common.ids import ArtifactId, Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Strategy
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    GenerationRecord,
    GenerationState,
    Serving,
    Target,
)
from services.common.registry.store import Put
from services.gateway.publication_plan import PublishOrder, Seen, next_revision, plan
from services.scheduler.patience import Patience
from services.scheduler.rollout import Step, steps_due
from services.scheduler.rollout_transaction import Concerned, Standing, transaction
from tests.simulation.registry import SimRegistry, SimView

MODEL: Final = ModelName("m")
ARTIFACTS: Final = tuple(ArtifactId(letter * 64) for letter in "abc")
TIME: Final = "2026-01-01T00:00:00+00:00"
_PROCESS: Final = {"address": "x:1", "host": "h", "start_time": TIME}

Steps = Generator[None, None, None]  # yields where others may act


def random_order(chance: random.Random) -> PublishOrder:
    """Of either cohort, sometimes an unpublish, sometimes one that two engines must be ready for."""
    artifact_id = chance.choice([*ARTIFACTS, *ARTIFACTS, None])
    strategy = Strategy(min_ready=chance.choice([None, None, 2]))
    cohort = chance.choice([Cohort.STABLE, Cohort.STABLE, Cohort.CANARY])
    return PublishOrder(MODEL, cohort, artifact_id, None, "w", "y", strategy)


def publish(registry: SimRegistry, order: PublishOrder) -> Steps:
    """As `Publications` does; one that would be refused is given up."""
    while True:
        last = registry.now.get(keys.revision(MODEL))
        yield
        target = registry.now.get(keys.target(MODEL, order.cohort))
        yield
        audits = registry.under(keys.audits(MODEL))
        yield
        seen = Seen(last, target, audits, registry.under(keys.intents(MODEL)))
        yield
        try:
            revision = next_revision(order, seen, Revision(0))
            due = plan(order, seen, None, revision=revision, time=TIME, trace_parent="")
        except HalogenError:
            return
        if registry.commit(due.conditions, due.writes):
            return


class SimEngine:
    """Loads what it sees named, well or badly."""

    def __init__(self, registry: SimRegistry, name: str, chance: random.Random) -> None:
        self._registry = registry
        self._id = ProcessId(name)
        self._chance = chance
        self.targets = SimView(registry, keys.TARGETS)
        self._held: dict[str, GenerationRecord] = {}

    def act(self, states: tuple[GenerationState, ...]) -> None:
        """Comes to one of the states with each target that it sees, and tells so."""
        for key, target in self.targets.records(Target).items():
            if target.artifact_id is None or target.failure:
                self._held.pop(key, None)
                continue
            model, cohort = keys.split_cohort_key(key)
            self._held[key] = GenerationRecord(
                model=model,
                cohort=cohort,
                revision=target.revision,
                artifact_id=target.artifact_id,
                state=self._chance.choice(states),
            )
        record = EngineRecord(
            id=self._id,
            instance_id=InstanceId("i"),
            runtime_build="b",
            generations=tuple(self._held.values()),
            **_PROCESS,
        )
        self._registry.commit((), [Put(keys.engine(self._id), record.encode())])


def tell_texts(registry: SimRegistry, artifacts: tuple[ArtifactId, ...]) -> None:
    """The gateway has the text of these."""
    record = GatewayRecord(id=ProcessId("g"), instance_id=InstanceId("i"), artifact_ids=artifacts, **_PROCESS)
    registry.commit((), [Put(keys.gateway(record.id), record.encode())])


class SimLeader:
    """Decides by views that lag behind, each for itself; there may be several who believe that they lead."""

    def __init__(self, registry: SimRegistry, timeout_s: float) -> None:
        self._registry = registry
        self.views = {
            prefix: SimView(registry, prefix)
            for prefix in (keys.TARGETS, keys.SERVING, keys.ENGINES, keys.GATEWAYS)
        }
        self._patience = Patience(timeout_s)

    def act(self, now_s: float) -> Steps:
        """As `RolloutWriter` does in one go."""
        due = steps_due(
            targets=self.views[keys.TARGETS].records(Target),
            serving=self.views[keys.SERVING].records(Serving),
            engines=tuple(self.views[keys.ENGINES].records(EngineRecord).values()),
            gateways=tuple(self.views[keys.GATEWAYS].records(GatewayRecord).values()),
            patience=self._patience,
            now_s=now_s,
        )
        for step in due:
            yield from self._write(step)

    def _write(self, step: Step) -> Steps:
        entries = []
        for key in Concerned.by(step):
            entries.append(self._registry.now.get(key))
            yield
        due = transaction(step, Standing(*entries), TIME)
        yield
        if due is not None:
            self._registry.commit(due.conditions, due.writes)
