"""A process ends when asked, finishes first, and is not hurried by an echo of the same wish."""

from __future__ import annotations

import signal
import subprocess
import sys

SLOW_TO_END = """
import asyncio
from services.common import lifecycle
from services.common.telemetry.logs import configure_logs
configure_logs("test", "error")
lifecycle.REPEAT_S = {repeat_s}

async def main(stop):
    print("up", flush=True)
    await stop.wait()
    print("ending", flush=True)
    await asyncio.to_thread(input)

lifecycle.run(main)
"""


def started(repeat_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_END.format(repeat_s=repeat_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert "up" == process.stdout.readline().strip()
    return process


def test_signals_in_quick_succession_are_one_wish() -> None:
    """The kernel tells the child of a killed launcher once per thread: it still finishes what it does.

    Turns red when: Stop.ask does not look at the time.
    """
    with started(repeat_s=60) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert "ending" == process.stdout.readline().strip()
        process.send_signal(signal.SIGTERM)
        process.communicate("\n", timeout=30)
    assert 0 == process.returncode


def test_r_e7_a_second_signal_later_ends_it_at_once() -> None:
    """The operator has waited long enough: nothing is finished.

    Fault injection: turns red when Stop.ask does not end the process.
    """
    with started(repeat_s=0) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert "ending" == process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        assert 1 == process.wait(30)
