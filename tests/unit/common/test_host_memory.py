"""What the kernel tells of memory, read from a tree of files as it makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.host_memory import HostMemory
from services.common.memory_guard import Bound
from tests.fake_host import AVAILABLE_KB, TOTAL_KB, group, make_host

HOST = Bound("this host", TOTAL_KB * 1024, (TOTAL_KB - AVAILABLE_KB) * 1024)
V1 = {
    "memory/jobs/memory.limit_in_bytes": "500",
    "memory/jobs/memory.usage_in_bytes": "100",
    "memory/jobs/memory.stat": "inactive_file 1\ntotal_inactive_file 2\n",
}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, []),
        ("0::/\n", group("", "max", "700"), []),
        ("0::/\n", group("", "900", "700", 5), [(900, 695)]),
        ("0::/\n", group("", "9", "4", 5), [(9, 0)]),
        ("0::/a/b\n", group("a/b/", "900", "700") | group("a/", "950", "800"), [(900, 700), (950, 800)]),
        ("0::/a/b\n", group("a/b/", "max", "700") | group("a/", "950", "800"), [(950, 800)]),
        ("0::/seen/from/outside\n", group("", "900", "700"), [(900, 700)]),
        ("0::/../../elsewhere\n", group("", "900", "700"), [(900, 700)]),
        ("4:cpu,cpuacct:/x\n3:memory:/jobs\n", V1, [(500, 98)]),
    ],
)
def test_every_limit_above_this_process_is_told(
    tmp_path: Path, groups: str, files: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    """Control groups of both versions, their own and those above them; cached files do not count as held.

    Fault injection: turns red when HostMemory looks at its own group alone.
    """
    bounds = HostMemory(make_host(tmp_path, groups, files)).bounds()
    assert [*(Bound("the control group", *pair) for pair in expected), HOST] == list(bounds)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("", {}, []),
        ("0::/\n", group("", "900", "700"), []),
        ("0::/a/b\n", group("a/b/", "900", "700") | group("a/", "950", "800"), [(950, 800)]),
        ("4:cpu,cpuacct:/x\n3:memory:/jobs\n", V1, []),
    ],
)
def test_other_processes_memory_counts_above_this_process(
    tmp_path: Path, groups: str, files: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    """In the control groups above its own, and on the host.

    Fault injection: turns red when `shared_bounds` leaves no group out, or all.
    """
    bounds = HostMemory(make_host(tmp_path, groups, files)).shared_bounds()
    assert [*(Bound("the control group", *pair) for pair in expected), HOST] == list(bounds)


def test_the_least_limit_is_what_there_is(tmp_path: Path) -> None:
    """Of the own group, those above it and the host.

    Fault injection: turns red when `limit_bytes` takes the first.
    """
    files = group("a/b/", "900", "700") | group("a/", "800", "700")
    assert 800 == HostMemory(make_host(tmp_path / "grouped", "0::/a/b\n", files)).limit_bytes
    assert TOTAL_KB * 1024 == HostMemory(make_host(tmp_path / "free", "0::/\n", {})).limit_bytes


def test_this_host_can_be_read() -> None:
    """Whatever kernel the tests run on."""
    *_, host = HostMemory().bounds()
    assert 0 < host.held_bytes < host.limit_bytes
