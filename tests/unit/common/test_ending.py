"""Signals that ask a command to end: heard once, and not at all where they are ignored."""

from __future__ import annotations

import signal

import pytest

from services.common.ending import ending_in_order


def test_the_second_signal_does_not_disturb_the_closing() -> None:
    """The first closes the scopes with a status that names it; afterwards all is as before.

    Turns red when: `end` ignores nothing.
    """
    before, closed = signal.getsignal(signal.SIGTERM), list[str]()
    with pytest.raises(SystemExit) as ended, ending_in_order():
        end_while_closing(closed)
    assert (128 + signal.SIGTERM, ["whole"]) == (ended.value.code, closed)
    assert before == signal.getsignal(signal.SIGTERM)


def end_while_closing(closed: list[str]) -> None:
    """Asks this process to end, and twice again while it does."""
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
        closed.append("whole")


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup: a terminal that closes ends nothing. Turns red when: SIG_IGN is one of ours."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_in_order():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
