"""Swaps read from an engine's log, and the times of tokens inside and outside of them."""

from __future__ import annotations

import datetime as dt
import json

import pytest

from bench.swap_load import Delivery
from bench.swap_windows import Mark, Spans, Window, by_phase, delivered, longest_gap_s, p99_s, windows
from services.common.ids import ArtifactId

A, B = ArtifactId("a" * 64), ArtifactId("b" * 64)


def line(at_s: float, event: str, artifact_id: str, new: str = "") -> str:
    timestamp = dt.datetime.fromtimestamp(at_s, dt.UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"event": event, "timestamp": timestamp, "artifact_id": artifact_id, "new": new})


def test_a_swap_lasts_from_the_first_question_for_what_comes_to_the_end_of_what_goes() -> None:
    """What comes first is no swap; a load that is tried again began with its first try.

    Fault injection: turns red when a later `checkpoint_start` of the same artifact begins a window anew.
    """
    log = [
        line(1, "checkpoint_start", A),
        line(2, "generation_state", A, "WARMING"),
        line(3, "generation_state", A, "ACTIVE"),
        "no event at all",
        line(10, "checkpoint_start", B),
        line(11, "checkpoint_start", B),
        line(12, "generation_state", B, "WARMING"),
        line(13, "generation_state", B, "ACTIVE"),
        line(13.5, "generation_state", A, "DRAINING"),
        line(15, "generation_state", A, "RETIRED"),
    ]
    marks = (Mark("FETCHING", 10), Mark("WARMING", 12), Mark("ACTIVE", 13))
    assert [Window(B, marks, 15)] == windows(log)
    assert [("FETCHING", 10, 12), ("WARMING", 12, 13), ("ACTIVE", 13, 15)] == list(windows(log)[0].phases)


def test_the_same_artifact_may_come_and_go_many_times() -> None:
    """Each time is a window of its own."""
    log = [line(0, "checkpoint_start", A)]
    for at_s, coming, going in ((10, B, A), (20, A, B), (30, B, A)):
        log += [line(at_s, "checkpoint_start", coming), line(at_s + 1, "generation_state", going, "RETIRED")]
    assert [(B, 10, 11), (A, 20, 21), (B, 30, 31)] == [
        (each.artifact_id, each.begin_s, each.end_s) for each in windows(log)
    ]


def test_a_moment_is_inside_a_span_from_its_beginning_to_just_before_its_end() -> None:
    """Also before the first one and after the last one it is told apart."""
    spans = Spans([(20.0, 22.0), (10.0, 11.0)])
    assert [False, True, False, True, False] == [at_s in spans for at_s in (9.9, 10.0, 11.0, 21.9, 22.0)]
    assert spans.mean_s == pytest.approx(1.5)
    window = Window(A, (Mark("FETCHING", 10.0), Mark("ACTIVE", 10.5)), 11.0)
    assert [True, False] == [10.7 in by_phase([window])[phase] for phase in ("ACTIVE", "FETCHING")]


def test_percentiles_are_over_tokens_and_first_tokens_have_no_time() -> None:
    """Tokens that come together have waited in equal parts; 99 of 100 fast ones hide a slow one, 98 do not."""
    fast = Delivery(1.0, 49, 0.49)
    slow, first = Delivery(2.0, 1, 5.0), Delivery(0.0, 1, None)
    assert 0.01 == p99_s([first, fast, fast, Delivery(1.5, 1, 0.01), slow])
    assert 5.0 == p99_s([fast, fast, slow, slow])
    assert p99_s([first]) is None


def test_tokens_in_a_window_and_the_longest_time_without_any() -> None:
    """Also the times before the first and after the last delivery count."""
    found = [Delivery(9.0, 5, None), Delivery(10.0, 2, 1.0), Delivery(10.5, 3, 0.5), Delivery(14.0, 7, 1.0)]
    assert 5 == delivered(found, Window(A, (Mark("FETCHING", 10.0),), 14.0))
    assert 3.5 == longest_gap_s(found, 9.5, 14.5)
    assert 2.0 == longest_gap_s([], 1.0, 3.0)
