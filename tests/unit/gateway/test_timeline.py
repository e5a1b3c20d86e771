"""The stages of a request."""

from __future__ import annotations

from services.gateway.timeline import Timeline


def test_stages_add_up() -> None:
    """Two waits for a ticket are one queue time; prefill begins at the second ticket."""
    times = Timeline(10.0)
    times.wait(11.0, 12.0)
    times.wait(12.5, 15.0)
    assert [None, 0.5] == [times.receive(17.0), times.receive(17.5)]
    assert (3.5, 2.0, 0.5) == (times.queue_s, times.prefill_s, times.decode_s)
    assert (7.0, 9.0) == (times.first_token_s, times.elapsed_s(19.0))


def test_a_stage_that_was_not_reached_has_no_length() -> None:
    """Zero would be a measurement."""
    times = Timeline(10.0)
    assert [None] * 4 == [times.queue_s, times.prefill_s, times.decode_s, times.first_token_s]
