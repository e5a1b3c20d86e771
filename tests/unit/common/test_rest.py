"""A load beside requests has a tenth of one core, and all of it when nobody is served."""

from __future__ import annotations

import threading

import pytest
import torch

from services.common.rest import RESTS, Rest
from services.engine.mapping import populate


class Waits(threading.Event):
    """An event that is never set, and moves a clock by what it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []
        self.now_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout or 0)
        self.now_s += timeout or 0
        return False


@pytest.mark.parametrize(("is_busy", "waits"), [(True, [RESTS * 2.0, RESTS * 1.0]), (False, [])])
def test_a_rest_is_in_proportion_to_the_work(is_busy: bool, waits: list[float]) -> None:
    """Nine times what was done since the last one, so that what is rested is not counted as work.

    Fault injection: turns red when Rest.take does not note when a rest has ended, or rests though nobody is served.
    """
    stop = Waits()
    rest = Rest(lambda: is_busy, stop, clock_s=lambda: stop.now_s)
    for worked_s in (2.0, 1.0):
        stop.now_s += worked_s
        rest.take()
    assert waits == stop.waited_s


def test_every_piece_of_a_mapping_is_followed_by_a_rest() -> None:
    """Of 4 MiB, so that what is held up meanwhile is so for a millisecond or two."""
    rests: list[None] = []
    populate(torch.zeros(9 << 20, dtype=torch.uint8), threading.Event(), lambda: rests.append(None))
    assert 3 == len(rests)
