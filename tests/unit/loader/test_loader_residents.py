"""Residents: who is in memory, and who goes first."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.common.ids import ArtifactId
from services.loader.place import Holding, PlaceKind
from services.loader.residents import Prepared, Residents

KEEP_S = 10.0
IDS = st.sampled_from([ArtifactId(letter * 64) for letter in "abcd"])
KINDS = st.sampled_from(PlaceKind)


def prepared(artifact_id: ArtifactId, kind: PlaceKind) -> Prepared:
    holding = Holding(kind=kind, mapped_path="/x", size_bytes=1, let_go=lambda: None, release=lambda: None)
    return Prepared(
        artifact_id=artifact_id, path="model.halogen", identity="i", holding=holding, huge_pages=False
    )


class ResidentsAgainstModel(RuleBasedStateMachine):
    """Any order of adding, asking, evicting and waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.residents = Residents(KEEP_S)
        self.model: dict[ArtifactId, tuple[PlaceKind, float]] = {}
        self.resting: set[ArtifactId] = set()

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(artifact_id=IDS, kind=KINDS)
    def add(self, artifact_id: ArtifactId, kind: PlaceKind) -> None:
        if artifact_id not in self.model:
            self.residents.add(prepared(artifact_id, kind), self.now_s)
            self.model[artifact_id] = (kind, self.now_s)

    @rule(artifact_id=IDS)
    def ask(self, artifact_id: ArtifactId) -> None:
        found = self.residents.ask(artifact_id, self.now_s)
        if artifact_id in self.resting:
            self.resting.remove(artifact_id)
            del self.model[artifact_id]
        assert (artifact_id in self.model) == (found is not None)
        if found:
            self.model[artifact_id] = (found.holding.kind, self.now_s)

    @rule(kind=KINDS)
    def evict(self, kind: PlaceKind) -> None:
        """The victim lies in that place, was not asked for lately, and nobody waits longer."""
        victim = self.residents.victim(kind, self.now_s)
        idle = {i: at for i, (k, at) in self.model.items() if k is kind and self.now_s - at >= KEEP_S}
        assert bool(idle) == (victim is not None)
        if victim:
            assert min(idle.values()) == idle[victim.artifact_id]
            self.residents.remove(victim.artifact_id)
            self.resting.discard(victim.artifact_id)
            del self.model[victim.artifact_id]

    @rule()
    def rest(self) -> None:
        """Whoever can be found by others rests once idle; the next to rest is the one asked for longest ago."""
        shared = {i: at for i, (k, at) in self.model.items() if k.is_shared}
        self.resting |= {i for i, at in shared.items() if self.now_s - at >= KEEP_S}
        waiting = [at + KEEP_S for i, at in shared.items() if i not in self.resting]
        assert min(waiting, default=None) == self.residents.rest_idle(self.now_s)

    @invariant()
    def agrees(self) -> None:
        assert tuple(sorted(self.model)) == self.residents.artifact_ids
        assert len(self.model) == len(self.residents)
        for kind in PlaceKind:
            assert [k for k, _ in self.model.values()].count(kind) == self.residents.held_bytes(kind)


TestResidents = ResidentsAgainstModel.TestCase
TestResidents.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
