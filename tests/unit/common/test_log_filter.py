"""What an operator sees of the log who asks for a part of it."""

from __future__ import annotations

import re

import pytest
import structlog

from services.common.telemetry.log_filter import LogFilter

OPERATORS = LogFilter(re.compile("checkpoint|state_machine|memory_pool"))


def is_shown(log_filter: LogFilter, method: str, **event: str) -> bool:
    try:
        return event == log_filter(None, method, {**event})
    except structlog.DropEvent:
        return False


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        ({"event": "checkpoint_start"}, True),
        ({"event": "atomic_swap_commit", "component": "state_machine"}, True),
        ({"event": "memory_prealloc", "component": "memory_pool"}, True),
        ({"event": "listening"}, False),
        ({"event": "listening", "path": "checkpoint"}, False),
    ],
)
def test_component_and_name_decide(event: dict[str, str], shown: bool) -> None:
    """The expression is found anywhere in one of them; other values say nothing.

    Fault injection: turns red when the component is not looked at.
    """
    assert shown == is_shown(OPERATORS, "info", **event)


@pytest.mark.parametrize("method", ["warning", "error", "exception", "critical"])
def test_trouble_is_always_shown(method: str) -> None:
    """Whatever was asked for."""
    assert is_shown(OPERATORS, method, event="registration_lost")


def test_who_asks_for_nothing_sees_everything() -> None:
    """The empty expression is found everywhere."""
    assert is_shown(LogFilter(re.compile("")), "debug", event="listening")
