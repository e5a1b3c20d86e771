"""Metrics that are read from live objects."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from services.common.metrics import LiveMetrics
from tests.scrape import read


def test_a_gauge_is_read_at_every_scrape() -> None:
    """Nobody sets it, so nobody can forget to."""
    registry, waiting = CollectorRegistry(), {("batch",): 2.0}
    LiveMetrics(registry).gauges("waiting", "What waits.", ("reason",), lambda: waiting)
    assert {"batch": 2.0} == read(registry).by("halogen_waiting", "reason")
    waiting.clear()
    assert [] == read(registry).samples("halogen_waiting")


def test_a_name_is_given_once() -> None:
    """Two metrics of one name are a fault of ours, seen at the start."""
    registry = CollectorRegistry()
    live = LiveMetrics(registry)
    live.gauge("steps", "One.", lambda: 1)
    with pytest.raises(ValueError, match="halogen_steps"):
        live.gauge("steps", "Another.", lambda: 2)


def test_sizes_become_a_histogram() -> None:
    """Buckets are cumulative; sum and count are of all sizes."""
    registry = CollectorRegistry()
    LiveMetrics(registry).histogram("tokens", "Sizes.", (1, 8, 16), lambda: {1: 3, 9: 2, 100: 1})
    told = read(registry)
    assert {"1.0": 3.0, "8.0": 3.0, "16.0": 5.0, "+Inf": 6.0} == told.by("halogen_tokens_bucket", "le")
    assert (6, 121) == (told.value("halogen_tokens_count"), told.value("halogen_tokens_sum"))
