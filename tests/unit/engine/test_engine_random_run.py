"""Engines with a full arena, several models and generations, through whatever may happen, in any order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import Phase

from services.engine.job import Job
from services.engine.page import Page
from services.engine.prefix_cache import PrefixCache
from services.engine.prefix_key import Origin
from services.engine.reservation import Reservation
from services.engine.swap_space import SwapSpace
from tests.unit.engine.random_moves import engines_by_hand
from tests.unit.engine.random_run import run_round
from tests.unit.engine.seen import Seen

SECONDS: Final = int(os.environ.get("HALOGEN_RANDOM_RUN_S", "60"))
FIRST_SEED: Final = os.environ.get("HALOGEN_FIRST_SEED", "0")
SHRINKING_S: Final = 300  # what hypothesis takes at most to cut a failure down
MOST_ROUNDS: Final = 20  # until a fault is found; one or two are mostly enough
ANYBODYS: Final = Origin("", "", "")


@pytest.mark.timeout(2 * SECONDS + SHRINKING_S + 120)
def test_a_random_run_ends_every_request_once_and_loses_nothing() -> None:
    """Asked, left, too late, set back, failed, drained, replaced, stopped and started again, with the arena full.

    For some seconds, in a process of its own, whose memory does not grow once it has settled; HALOGEN_RANDOM_RUN_S makes
    it longer, HALOGEN_FIRST_SEED another. All books are right after every step, and every answer as far as it goes.

    Fault injection: the test below has some. Turns red as well when a list keeps every `TokenStream`, `StepLoop.nudge` or
    `Stepper.fail_all` do nothing, `KvDesk.settle` does not hear that all are stuck, or `Page.unpin` does nothing.
    """
    command = [sys.executable, "-m", "tests.unit.engine.random_run", str(SECONDS), FIRST_SEED]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert 0 == ended.returncode, (ended.stdout + ended.stderr)[-10_000:]
    print(ended.stdout)


Fault = Callable[[pytest.MonkeyPatch], None]


def saved_and_not_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def come_back(job: Job, reservation: Reservation, prefix: tuple[int, ...]) -> None:
        job.sequence.come_back(reservation, prefix)
        if job.saved is not None and job.saved.tokens > job.sequence.computed:
            job.sequence.restore(job.saved.tokens)
        job.saved = None

    monkeypatch.setattr(Job, "come_back", come_back)


def swap_space_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwapSpace, "give_back", lambda *_: None)


def pages_of_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.engine.prefix_cache.root", lambda *_: b"")
    find = PrefixCache.find
    monkeypatch.setattr(PrefixCache, "find", lambda cache, _, *asked: find(cache, ANYBODYS, *asked))


def pages_evicted_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Page, "pin", lambda page: not page.is_gone)
    monkeypatch.setattr(Page, "unpin", lambda _: None)


@pytest.mark.parametrize(
    "fault",
    [
        saved_and_not_put_back,
        swap_space_kept,
        pages_of_another_model,
        pages_evicted_in_use,
    ],
)
def test_a_fault_of_the_engine_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """By some tens of engines; what makes it red is what `test_a_random_run` looks for."""
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        some_rounds()


def some_rounds() -> None:
    for number in range(MOST_ROUNDS):
        run_round(number, Seen(), settings_of=engines_by_hand, phases=(Phase.generate,))
