"""How a publish is to be taken into service: from the wire to the record, and from the command to the wire."""

from __future__ import annotations

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli.control_client import Means
from services.common.errors import InvalidRequest
from services.common.registry.publish_records import Strategy, SwapMode
from services.gateway.operator_words import checked_strategy
from services.gateway.publish_messages import strategy_of


@pytest.mark.parametrize(
    "means",
    [
        Means(),
        Means(SwapMode.ATOMIC_SWAP, 2, 1_000, fallback_on_failure=False, memory_guard_ratio=0.5),
        Means(SwapMode.DRAIN_THEN_LOAD, fallback_on_failure=True),
    ],
)
def test_what_an_operator_says_is_on_record(means: Means) -> None:
    """And nothing else: what is left out is None, as the servers have it."""
    assert Strategy(**means._asdict()) == strategy_of(means.message)


def test_a_mode_that_nobody_knows_is_refused() -> None:
    """It comes from a newer command; to take it for another would be worse."""
    with pytest.raises(InvalidRequest, match="knows no swap mode 9"):
        strategy_of(pb.Strategy(mode=9))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Strategy(min_ready=0), "min_ready is 0"),
        (Strategy(timeout_ms=0), "timeout_ms is 0"),
        (Strategy(timeout_ms=86_400_001), "give 1 to 86400000"),
        (Strategy(memory_guard_ratio=0.0), "above 0 and at most 1"),
        (Strategy(memory_guard_ratio=1.5), "memory_guard_ratio is 1.5"),
    ],
)
def test_a_strategy_out_of_bounds_is_refused(strategy: Strategy, expected: str) -> None:
    """By name and bound."""
    with pytest.raises(InvalidRequest, match=expected):
        checked_strategy(strategy)
    assert Strategy() == checked_strategy(Strategy())
