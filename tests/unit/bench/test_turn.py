"""Turns: what they come to, how they are kept, and who met whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.turn import Turn, Turns, percentile
from bench.workload import WORKLOADS, Timing

SINGLE = WORKLOADS["single"]


def turn(contender: str, round_: str, rate: float, others_cores: float = 0.0) -> Turn:
    return Turn(
        section="small", workload="single", contender=contender, round=round_, rate=rate,
        first_p50_s=0.1, first_p99_s=0.2, bandwidth=50.0, others_cores=others_cores,
    )  # fmt: skip


def test_a_turn_is_the_median_of_its_repeats() -> None:
    """Of rates; first tokens are those of all repeats together."""
    repeats = [[Timing(0.1 * number, seconds, 128)] for number, seconds in enumerate((1.0, 2.0, 4.0), 1)]
    found = Turn.of(
        SINGLE, repeats, section="served", contender="ours", round="1", bandwidth=40.0, others_cores=0.1
    )
    assert (64.0, 0.2, 0.3) == pytest.approx((found.rate, found.first_p50_s, found.first_p99_s))


def test_turns_are_kept_from_run_to_run(tmp_path: Path) -> None:
    """Those of an earlier run count too.

    Fault injection: turns red when `add` opens its file anew.
    """
    file = tmp_path / "turns.jsonl"
    turns = [turn("a", "1", 10.0), turn("b", "1", 5.0)]
    for each in turns:
        Turns(file).add(each)
    assert turns == list(Turns(file))


def test_only_those_of_one_round_are_a_pair() -> None:
    """A turn whose partner is missing counts for nothing.

    Fault injection: turns red when turns are paired in their order instead of by round.
    """
    turns = Turns()
    for each in (turn("a", "1", 10.0), turn("a", "2", 12.0), turn("b", "2", 4.0), turn("b", "3", 1.0)):
        turns.add(each)
    ratio = turns.ratio("small", "single", ("a", "b"))
    assert ratio is not None
    assert (1, 3.0) == pytest.approx((ratio.pairs, ratio.mean))
    assert turns.ratio("medium", "single", ("a", "b")) is None


def test_what_was_disturbed_does_not_count() -> None:
    """Whoever waits for its threads at barriers loses more beside others than whoever does not.

    Fault injection: turns red when `of` takes every turn.
    """
    turns = Turns(most_others=0.2)
    for each in (
        turn("a", "1", 9.0),
        turn("b", "1", 1.0, others_cores=0.5),
        turn("a", "2", 8.0),
        turn("b", "2", 4.0),
    ):
        turns.add(each)
    ratio = turns.ratio("small", "single", ("a", "b"))
    assert ratio is not None
    assert (1, 1) == (ratio.pairs, turns.disturbed)
    assert 2.0 == pytest.approx(ratio.mean)


def test_a_percentile_is_one_of_the_values() -> None:
    """The highest, where there are few."""
    assert [2, 99, 5] == [percentile([1, 2, 3], 0.5), percentile(range(100), 0.99), percentile([5], 0.99)]
