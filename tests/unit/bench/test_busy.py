"""Who keeps the machine busy."""

from __future__ import annotations

import subprocess
import sys

from bench.busy import Busy

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_what_was_asked_about_is_not_others() -> None:
    """A process that works counts as its own, running or ended, and as others' where nobody asked about it.

    Fault injection: turns red when `look` leaves out the children that have ended.
    """
    before = Busy.look(())
    subprocess.run([sys.executable, "-c", BURN], check=True)
    after = Busy.look(())
    assert after.own_s - before.own_s >= 0.3
    assert after.all_s - before.all_s >= 0.25  # ticks are coarse


def test_descendants_are_their_ancestors_own() -> None:
    """The kernel tells only parents; whoever starts helpers answers for them."""
    inner = f"{BURN}\nprint(flush=True)\ninput()"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    command = [sys.executable, "-c", outer]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdin
        alone = Busy.look(())
        parent.stdout.readline()
        asked = Busy.look([parent.pid])
        parent.stdin.write(b"\n")
        parent.stdin.close()
    assert asked.own_s - alone.own_s >= 0.25


def test_others_are_what_is_left() -> None:
    """Never less than nothing, though ticks are coarse."""
    begin = Busy(at_s=0.0, all_s=10.0, own_s=5.0)
    assert 0.25 == begin.others_cores(Busy(at_s=4.0, all_s=14.0, own_s=8.0))
    assert 0.0 == begin.others_cores(Busy(at_s=4.0, all_s=11.0, own_s=8.0))
