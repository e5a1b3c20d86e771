"""A request's time is divided among its stages without a gap."""

from __future__ import annotations

from services.engine.timeline import Stage, StepTimes, Timeline


def test_a_finished_request_went_through_all_stages() -> None:
    """Queue up to the first step's begin, prefill up to the end of the step with the first token, decode from there."""
    timeline = Timeline(100)
    timeline.start_prefill(StepTimes(110, 120))
    timeline.start_decode(StepTimes(130, 140))
    timeline.end(StepTimes(150, 160))
    assert [Stage("queue", 100, 110), Stage("prefill", 110, 140), Stage("decode", 140, 160)] == list(
        timeline.stages(999)
    )


def test_one_that_is_cut_short_has_the_stages_that_it_entered() -> None:
    """The last one lasts until now."""
    timeline = Timeline(100)
    assert [Stage("queue", 100, 105)] == list(timeline.stages(105))
    timeline.start_prefill(StepTimes(110, 120))
    assert [Stage("queue", 100, 110), Stage("prefill", 110, 125)] == list(timeline.stages(125))


def test_a_clock_that_is_set_back_makes_no_negative_stage() -> None:
    """Unix time may step; a stage never ends before it begins."""
    assert [Stage("queue", 100, 100)] == list(Timeline(100).stages(90))
