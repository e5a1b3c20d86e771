"""What a scheduler tells of its questions."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from services.common.errors import Overloaded
from services.scheduler.metrics import SchedulerMetrics
from tests.scrape import read


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Overloaded("full", reason="QUEUE_FULL"), "QUEUE_FULL"),
        (RuntimeError("bug"), "INTERNAL"),
        (asyncio.CancelledError(), "CALLER_LEFT"),
    ],
)
def test_a_question_is_counted_once_however_it_is_answered(failure: BaseException, reason: str) -> None:
    """Granted, refused for a reason, or given up by who asked."""
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    with metrics.question():
        pass
    with pytest.raises(type(failure)), metrics.question():
        raise failure
    told = read(registry)
    assert 1 == told.value("halogen_grants_total")
    assert {reason: 1} == told.by("halogen_refusals_total", "reason")
