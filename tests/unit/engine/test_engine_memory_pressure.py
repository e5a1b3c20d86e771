"""Whether memory is short: what the kernel tells of control groups of both versions, and of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.engine.memory_pressure import MemoryPressure, Signs
from tests.fake_host import GROUPS, make_host

PSI = "some avg10=1.00 avg60=0.10 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
EVENTS = "low 1\nhigh 20\nmax 300\noom 4000\noom_kill 50000\n"
TWO, ONE = "0::/a/b\n", "5:memory:/a/b\n"


@pytest.mark.parametrize(
    ("groups", "files", "host", "expected"),
    [
        (TWO, {"a/b/memory.pressure": PSI.format(7), "a/b/memory.events": EVENTS}, PSI.format(9), Signs(7, 54_000)),
        (TWO, {"a/b/memory.events": EVENTS}, PSI.format(9), Signs(9, 54_000)),
        (TWO, {"a/b/memory.events": EVENTS}, "", Signs(0, 54_320)),
        (ONE, {"memory/a/b/memory.failcnt": "12\n"}, PSI.format(9), Signs(9, 0)),
        (ONE, {"memory/a/b/memory.failcnt": "12\n"}, "", Signs(0, 12)),
        (TWO, {"a/b/memory.max": "max\n"}, "", Signs(0, 0)),
    ],
)  # fmt: skip
def test_signs_are_read(
    groups: str, files: dict[str, str], host: str, expected: Signs, tmp_path: Path
) -> None:
    """Stalls of the group, or of the host; limits that were reached count where nobody tells of stalls.

    Fault injection: turns red when reached limits count beside stalls, or when the host's stalls come first.
    """
    root = make_host(tmp_path, groups, {"a/b/x": "", "memory/a/b/x": "", **files})
    if host:
        (root / "proc/pressure").mkdir()
        (root / "proc/pressure/memory").write_text(host)
    assert expected == MemoryPressure(root).read()


def test_a_kernel_with_stalls_turned_off_gives_no_sign(tmp_path: Path) -> None:
    """Its file is there, and cannot be read."""
    root = make_host(tmp_path, TWO, {"a/b/x": ""})
    (root / GROUPS / "a/b/memory.pressure").mkdir()  # reading fails
    assert Signs(0, 0) == MemoryPressure(root).read()


@pytest.mark.parametrize(
    ("now", "is_pressed"),
    [(Signs(1_000_000, 5), False), (Signs(1_099_999, 5), False), (Signs(1_100_001, 5), True), (Signs(1_000_000, 6), True)],
)  # fmt: skip
def test_a_twentieth_of_the_time_in_stalls_is_too_much(now: Signs, is_pressed: bool) -> None:
    """Or any event, in the two seconds since the last look."""
    assert is_pressed == now.is_pressed_since(Signs(1_000_000, 5), 2.0)
