"""Which artifacts this engine shall hold, for which model@cohort, under which revision. Pure.

What the registry has once said stands until it says something newer: a record that vanishes, or a registry
that comes back empty, changes nothing. That a pair shall have nothing is said by a record without an artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple, Self

import structlog

from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import GenerationRecord, GenerationState, Serving, Target
from services.engine.generation import Generation
from services.engine.held_generation import HeldGeneration
from services.engine.making_way import MakingWay
from services.engine.named import Asked, Named, Pair
from services.engine.swap_policy import SwapPolicy, together

log = structlog.get_logger(component="state_machine")


class ServedPairs(NamedTuple):
    """The pairs that an engine is for; all of them when there is no entry."""

    entries: frozenset[tuple[ModelName, Cohort | None]]  # no cohort: every cohort

    @classmethod
    def parse(cls, texts: tuple[str, ...]) -> Self:
        """Reads ``model`` and ``model@cohort``; raises ValueError at an unknown cohort."""
        split = (text.partition("@") for text in texts)
        return cls(frozenset((ModelName(model), Cohort(c) if at else None) for model, at, c in split))

    def include(self, pair: Pair) -> bool:
        asked = {(pair.model, pair.cohort), (pair.model, None)}
        return not self.entries or not self.entries.isdisjoint(asked)


class Assignments:
    """What targets/ and serving/ ask of this engine.

    Args:
        serves: The pairs it is for.
        policy: How artifacts are taken into service whose publish does not say.

    Attributes:
        conflicts: Records that were refused because they named another artifact for a known revision.
        making_way: What is not loaded, or goes, for the sake of another.
    """

    def __init__(self, serves: ServedPairs, policy: SwapPolicy) -> None:
        self.conflicts = 0
        self._serves = serves
        self._refused: dict[Pair, Named] = {}
        self._targets: dict[Pair, Named] = {}
        self._serving: dict[Pair, Named] = {}
        self._revisions: dict[Pair, dict[ArtifactId, Revision]] = {}  # the latest that named each artifact
        self._trace_parents: dict[ArtifactId, str] = {}
        self._policy = policy
        self._policies: dict[ArtifactId, SwapPolicy] = {}
        self.making_way = MakingWay(self._targets, self._serving, self._revisions, policy)

    def hear(self, targets: Mapping[str, Target], serving: Mapping[str, Serving]) -> None:
        """Takes in the registry's records as they stand."""
        for key, target in targets.items():
            has_failed = target.failure is not None
            named = Named(target.revision, target.artifact_id, has_failed, target.strategy)
            self._note(self._targets, key, named)
            if target.served:  # by the commit before, which may yet be unheard of
                self._note(self._serving, key, Named(target.served.revision, target.served.artifact_id))
        for key, record in serving.items():
            self._note(self._serving, key, Named(record.revision, record.artifact_id))
        self._trace_parents = {
            target.artifact_id: target.trace_parent for target in targets.values() if target.artifact_id
        }
        for pair in self._revisions:
            self._leave_to_others(pair)
        self._policies = self._read_policies()

    def wanted(self) -> set[ArtifactId]:
        """Targets that have not failed, and what gateways still route to."""
        every = (named for known in (self._targets, self._serving) for named in known.values())
        return {named.artifact_id for named in every if named.artifact_id and not named.has_failed}

    def policy(self, artifact_id: ArtifactId) -> SwapPolicy:
        """How the artifact is taken into service. In any thread: what is asked is replaced, never changed."""
        return self._policies.get(artifact_id, self._policy)

    def conflict(self, pair: Pair) -> Failure | None:
        """The alarm that a revision of the pair was given another artifact, until a newer one is heard of."""
        refused = self._refused.get(pair)
        known = [each[pair].revision for each in (self._targets, self._serving) if pair in each]
        if refused is None or refused.revision < max(known):
            return None
        message = (
            f"revision {refused.revision} was said to name {refused.artifact_id or 'nothing'}, and names something else "
            "already, which stands; find out who writes to the registry beside halogen, and publish again"
        )
        return Failure(stage=Stage.COMMIT, reason="REVISION_CONFLICT", message=message)

    def pairs(self, artifact_id: ArtifactId) -> list[Pair]:
        """Those that have named the artifact, for as long as it is here."""
        return [pair for pair, revisions in self._revisions.items() if artifact_id in revisions]

    def asked(self, artifact_id: ArtifactId) -> Asked:
        """Who asks for the artifact; if several do, the latest."""
        named = ((r[artifact_id], pair) for pair, r in self._revisions.items() if artifact_id in r)
        revision, pair = max(named)
        return Asked(revision, pair, self._trace_parents.get(artifact_id, ""))

    def is_served(self, artifact_id: ArtifactId) -> bool:
        """Whether gateways route to it."""
        return any(named.artifact_id == artifact_id for named in self._serving.values())

    @property
    def targets(self) -> Mapping[Pair, Named]:
        """What pairs shall serve, as last heard."""
        return self._targets

    @property
    def serving(self) -> Mapping[Pair, Named]:
        """What gateways use, as last heard."""
        return self._serving

    @property
    def desired(self) -> dict[Pair, Revision]:
        """The revision of every target that names an artifact."""
        return {pair: named.revision for pair, named in self._targets.items() if named.artifact_id}

    def revisions(self, artifact_id: ArtifactId) -> dict[Pair, Revision]:
        """The latest revision of every pair that named the artifact."""
        return {pair: r[artifact_id] for pair, r in self._revisions.items() if artifact_id in r}

    def replaced(self, artifact_id: ArtifactId, generations: Mapping[ArtifactId, Generation]) -> bool:
        """Whether nobody asks for the artifact any more, and no pair that did needs it until another one is here."""
        if artifact_id in self.wanted():
            return False
        return all(self._is_provided(pair, artifact_id, generations) for pair in self.pairs(artifact_id))

    def forget_all_but(self, held: Container[ArtifactId]) -> None:
        """Drops what is neither here nor named any more, however it came and went."""
        for pair, revisions in self._revisions.items():
            named = self._named(pair.__eq__)
            for artifact_id in [it for it in revisions if it not in held and it not in named]:
                del revisions[artifact_id]

    def records(self, held: Mapping[ArtifactId, HeldGeneration]) -> tuple[GenerationRecord, ...]:
        """What this engine holds or fails to hold, for engines/{id}; of each pair in the order of the revisions."""
        told = [
            _record(pair, shown, held[artifact_id].generation)
            for pair, revisions in self._revisions.items()
            for artifact_id, latest in revisions.items()
            if artifact_id in held and (shown := held[artifact_id].shown_revision(pair, latest))
        ]
        return tuple(sorted(told, key=lambda it: (it.model, it.cohort, it.revision)))

    def _is_provided(
        self, pair: Pair, artifact_id: ArtifactId, generations: Mapping[ArtifactId, Generation]
    ) -> bool:
        """Whether the pair can do without the artifact, which it names no more.

        It can once gateways have gone on to something newer; else while it shall have nothing (a target that has failed
        is nothing that it shall have), has here what it shall have, or has what it named later: of several candidates
        that never served the last one stays, or none would make room for the next.
        """
        served, revisions = self._serving.get(pair), self._revisions[pair]
        if served and served.revision > revisions[artifact_id]:
            return True
        named = [known[pair] for known in (self._targets, self._serving) if pair in known]
        present = [it.artifact_id for it in named if it.artifact_id and not it.has_failed]
        later = [it for it, revision in revisions.items() if revision > revisions[artifact_id]]
        return not present or any(_is_active(generations.get(it)) for it in (*present, *later))

    def _read_policies(self) -> dict[ArtifactId, SwapPolicy]:
        told: dict[ArtifactId, list[SwapPolicy]] = {}
        for named in self._targets.values():
            if named.artifact_id:
                told.setdefault(named.artifact_id, []).append(self._policy.under(named.strategy))
        wanted = {artifact_id: together(policies) for artifact_id, policies in told.items()}
        return {
            artifact_id: policy.once_served(self._policy) if self.is_served(artifact_id) else policy
            for artifact_id, policy in wanted.items()
        }

    def _leave_to_others(self, pair: Pair) -> None:
        """Lets a pair stand no longer for artifacts that it names no more, and that stay for other pairs."""
        revisions = self._revisions[pair]
        for artifact_id in revisions.keys() & (self._named(lambda it: it != pair) - self._named(pair.__eq__)):
            del revisions[artifact_id]

    def _named(self, includes: Callable[[Pair], bool]) -> set[ArtifactId | None]:
        """What targets and serving name for some of the pairs."""
        known = (self._targets, self._serving)
        return {named.artifact_id for each in known for pair, named in each.items() if includes(pair)}

    def _note(self, known: dict[Pair, Named], key: str, named: Named) -> None:
        pair = Pair(*keys.split_cohort_key(key))
        if not self._serves.include(pair) or (pair in known and named.revision < known[pair].revision):
            return
        if standing := self._contradicted(pair, named):
            self._refuse(pair, named, standing)
            return
        known[pair] = named
        if named.artifact_id is None:
            return
        revisions = self._revisions.setdefault(pair, {})
        revisions[named.artifact_id] = max(named.revision, revisions.get(named.artifact_id, named.revision))

    def _contradicted(self, pair: Pair, named: Named) -> Named | None:
        """What was said before under the same revision, if it was something else."""
        said = [known[pair] for known in (self._targets, self._serving) if pair in known]
        return next(
            (it for it in said if it.revision == named.revision and it.artifact_id != named.artifact_id), None
        )

    def _refuse(self, pair: Pair, named: Named, standing: Named) -> None:
        """A revision names one artifact for good: the first stands, and the alarm is given once."""
        if self._refused.get(pair) != named:
            self._refused[pair] = named
            self.conflicts += 1
            told = {
                "revision": named.revision,
                "standing": standing.artifact_id,
                "refused": named.artifact_id,
            }
            log.error("revision_conflict", model=pair.model, cohort=pair.cohort, **told)


def _record(pair: Pair, revision: Revision, generation: Generation) -> GenerationRecord:
    return GenerationRecord(
        model=pair.model,
        cohort=pair.cohort,
        revision=revision,
        artifact_id=generation.artifact_id,
        state=generation.state,
        error=generation.error,
        failure=generation.failure,
        layout=generation.layout,
    )


def _is_active(generation: Generation | None) -> bool:
    return generation is not None and generation.state is GenerationState.ACTIVE
