"""How long a queue takes, told by how it has gone."""

from __future__ import annotations

from services.scheduler.queue_pace import QueuePace

SECOND = 1_000_000_000


def test_a_steady_queue_takes_its_length() -> None:
    """Two leave every second: ten that wait, and the newcomer, take five and a half."""
    pace = QueuePace(0)
    for half in range(1, 200):
        pace.leave(half * SECOND // 2)
    assert 11 * SECOND // 2 == pace.expected_ns(10, 199 * SECOND // 2)


def test_one_that_stands_still_takes_longer_and_longer() -> None:
    """A minute in which nobody leaves counts, however fast it was before.

    Fault injection: turns red when `expected_ns` goes by the time of the last departure.
    """
    pace = QueuePace(0)
    for tenth in range(1, 11):
        pace.leave(tenth * SECOND // 10)
    assert SECOND == pace.expected_ns(9, SECOND)
    assert 61 * SECOND == pace.expected_ns(9, 61 * SECOND)


def test_too_little_says_nothing() -> None:
    """A few departures are no pace."""
    pace = QueuePace(0)
    for second in range(1, 8):
        pace.leave(second * SECOND)
    assert 0 == pace.expected_ns(100, 8 * SECOND)
    pace.leave(8 * SECOND)
    assert 101 * SECOND == pace.expected_ns(100, 8 * SECOND)
