"""For each invariant a fault in the product that it tells: the explorer finds what it is there to find."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from services.common.errors import PreconditionFailed
from services.common.ids import ArtifactId, Revision
from services.common.registry.publish_progress import progress
from services.common.registry.records import GenerationState as State
from services.engine import generations
from services.engine.assignments import Assignments
from services.engine.generations import Borrowed, Generations
from services.engine.held_generation import HeldGeneration
from services.engine.succession import Succession
from services.gateway import publication_plan, publications
from services.gateway.publication_plan import next_revision
from services.scheduler import rollout, rollout_transaction
from services.scheduler.rollout_transaction import Transaction
from tests.simulation import sim_scheduler
from tests.simulation.schedule import Schedule
from tests.simulation.swap_invariants import INVARIANTS, Broken

Patch = Callable[[pytest.MonkeyPatch], None]
MOST_SCHEDULES: Final = 1_000


def _skip_a_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    def skipping(*args: Any) -> Revision:
        return Revision(next_revision(*args) + 1)

    monkeypatch.setattr(publications, "next_revision", skipping)


def _compare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = rollout_transaction.transaction

    def careless(*args: Any) -> Transaction | None:
        due = transaction(*args)
        return due and due._replace(conditions=())

    monkeypatch.setattr(sim_scheduler, "transaction", careless)


def _supersede_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_plan, "_superseding", lambda *_: ())


def _leave_intents_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_transaction, "_ended", lambda intent, *_: intent)


def _take_all_for_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def hopeful(*args: Any, **kwargs: Any) -> Any:
        seen = progress(*args, **kwargs)
        return seen._replace(ready=seen.engines)

    monkeypatch.setattr(rollout, "progress", hopeful)


def _want_targets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(self: Assignments) -> set[ArtifactId]:
        return {it.artifact_id for it in self._targets.values() if it.artifact_id and not it.has_failed}

    monkeypatch.setattr(Assignments, "wanted", wanted)


def _lend_whatever_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def borrow(self: Generations, artifact_id: ArtifactId) -> Iterator[Borrowed]:
        for held in reversed(self._held.values()):
            if held.generation.state is State.ACTIVE:
                with held.generation.use() as model:
                    yield Borrowed(held.generation, model)
                return
        raise PreconditionFailed("none")

    monkeypatch.setattr(Generations, "borrow", borrow)


def _drain_for_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drain = Succession._drain_if_replaced

    def hasty(self: Succession, held: HeldGeneration, now_s: float, *, yields: bool) -> None:
        drain(self, held, now_s, yields=yields)
        if held.generation.state is State.DRAINING and not held.generation.users:
            held.generation.advance(State.RETIRED)

    monkeypatch.setattr(Succession, "_drain_if_replaced", hasty)


def _dispose_again(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = Succession._let_go

    def forgetful(self: Succession, held: HeldGeneration, now_s: float, *, is_wanted: bool) -> Any:
        held.is_disposed = False
        return let_go(self, held, now_s, is_wanted=is_wanted)

    monkeypatch.setattr(Succession, "_let_go", forgetful)


def _have_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Succession, "_has_room", lambda *_: True)


def _wait_for_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Succession, "take_place", lambda *_: True)


def _count_on_what_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = Succession._let_go

    def hasty(self: Succession, held: HeldGeneration, now_s: float, *, is_wanted: bool) -> Any:
        yield from let_go(self, held, now_s, is_wanted=is_wanted)
        self._leaving.clear()

    monkeypatch.setattr(Succession, "_let_go", hasty)


def _overlook_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "progress", lambda *a, **kw: progress(*a, **kw)._replace(failed=()))


def _never_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Assignments, "replaced", lambda *_: False)


def _say_nothing_of_what_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_plan.Seen, "served", None)


def _never_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "is_of_content", lambda _: True)


FAULTS: Final[list[tuple[str, Patch]]] = [
    ("I1", _skip_a_revision),
    ("I2", _compare_nothing),
    ("I3", _supersede_nobody),
    ("I4", _leave_intents_open),
    ("I5", _take_all_for_ready),
    ("I6", _want_targets_alone),
    ("I7", _lend_whatever_serves),
    ("I8", _drain_for_no_time),
    ("I9", _dispose_again),
    ("I10", _have_room_for_all),
    ("I10", _wait_for_no_memory),
    ("I10", _count_on_what_leaves),
    ("I11", _overlook_failures),
    ("I12", _never_replace),
    ("I13", _say_nothing_of_what_is_served),
    ("I14", _never_try_again),
]


@pytest.mark.parametrize(("invariant", "inject"), FAULTS)
def test_a_fault_of_the_product_breaks_its_invariant(
    invariant: str, inject: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some schedule finds it."""
    inject(monkeypatch)
    failures = (Schedule.of(seed).failure for seed in range(MOST_SCHEDULES))
    assert invariant in (each.invariant for each in failures if isinstance(each, Broken))


def test_each_invariant_has_a_fault() -> None:
    """None is there that nothing breaks."""
    assert set(INVARIANTS) == {invariant for invariant, _ in FAULTS}
