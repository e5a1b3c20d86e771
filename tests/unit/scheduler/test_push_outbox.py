"""Which commit is pushed next, and when it is given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.common.backoff import Backoff
from services.common.ids import ModelName, Revision
from services.common.registry import keys
from services.scheduler.push_outbox import FIRST_PAUSE_S, MOST_PAUSE_S, Push, PushOutbox

ONE, TWO, TEN = (keys.commit(ModelName("m"), Revision(number)) for number in (1, 2, 10))


def test_the_oldest_goes_first_and_what_failed_waits_behind_the_others() -> None:
    """In the order of revisions; one that failed comes again once its pause is over."""
    outbox = PushOutbox(tries=3)
    assert Push(0.0, ONE) == outbox.next_push({TEN, TWO, ONE})
    assert not outbox.failed(ONE, 100.0)
    assert Push(0.0, TWO) == outbox.next_push({TEN, TWO, ONE})
    alone = outbox.next_push({ONE})
    assert alone is not None
    assert (ONE, True) == (alone.key, 100 + FIRST_PAUSE_S / 2 <= alone.due_s <= 100 + FIRST_PAUSE_S)
    assert outbox.next_push(()) is None


def test_a_push_fails_after_its_last_try_and_begins_anew() -> None:
    """Fault injection: turns red when `forget` keeps what was counted."""
    outbox = PushOutbox(tries=2)
    assert [False, True] == [outbox.failed(ONE, 0.0), outbox.failed(ONE, 0.0)]
    outbox.forget(ONE)
    assert Push(0.0, ONE) == outbox.next_push({ONE})
    assert not outbox.failed(ONE, 0.0)


def test_r_a11_fifty_pushes_that_fail_leave_nothing_behind() -> None:
    """Whether each ends as failed, or its commit is not to be pushed any more.

    Fault injection: turns red when `forget` does nothing, or `next_push` forgets none.
    """
    outbox, kept = PushOutbox(tries=2), []
    for number in range(50):
        ends, goes = (keys.commit(ModelName("m"), Revision(2 * number + each)) for each in (1, 2))
        assert not outbox.failed(goes, 0.0)
        assert [False, True] == [outbox.failed(ends, 0.0), outbox.failed(ends, 0.0)]
        outbox.forget(ends)
        kept.append(len(outbox._tried))
        outbox.next_push(())
        kept.append(len(outbox._tried))
    assert [1, 0] * 50 == kept


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_pauses_are_bounded_and_what_is_pushed_is_forgotten(times: list[float]) -> None:
    """However often it fails, the next try is a minute away at most; no entry outlives its commit's push."""
    outbox = PushOutbox(tries=1_000, backoff=lambda: Backoff(FIRST_PAUSE_S, MOST_PAUSE_S))
    for now_s in times:
        assert not outbox.failed(ONE, now_s)
        due = outbox.next_push({ONE})
        assert due is not None
        assert 0 < due.due_s - now_s <= MOST_PAUSE_S
    outbox.next_push({TWO})
    assert {} == outbox._tried
