"""How many threads make sense, read from trees of files as kernels of both versions make them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.common.cpu_list import parse_cpus
from services.common.processors import usable_processors
from tests.fake_host import make_host

EIGHT = range(8)
V2 = {"": "/ cgroup2 rw,nsdelegate"}
V1 = {
    "cpu,cpuacct": "/ cgroup rw,cpu,cpuacct",
    "cpuset": "/ cgroup rw,cpuset",
    "memory": "/ cgroup rw,memory",
}
V1_CONTAINER = {point: f"/docker/c1{said[1:]}" for point, said in V1.items()}
DOCKER_V1 = "5:cpuset:/docker/c1\n4:cpu,cpuacct:/docker/c1\n3:memory:/docker/c1\n"


def quota(folder: str, quota_us: int, period_us: int = 100_000) -> dict[str, str]:
    """The files of a group of version 1."""
    return {f"{folder}cpu.cfs_quota_us": f"{quota_us}\n", f"{folder}cpu.cfs_period_us": f"{period_us}\n"}


@pytest.mark.parametrize(
    ("mounts", "groups", "files", "expected"),
    [
        pytest.param({}, "", {}, 8, id="no groups at all"),
        pytest.param(V2, "0::/\n", {}, 8, id="2: no quota"),
        pytest.param(V2, "0::/\n", {"cpu.max": "max 100000\n"}, 8, id="2: the quota is max"),
        pytest.param(
            V2, "0::/\n", {"cpu.max": "100000 100000\n"}, 1, id="2: one processor, as in a container"
        ),
        pytest.param(V2, "0::/\n", {"cpu.max": "50000 100000\n"}, 1, id="2: less than one"),
        pytest.param(V2, "0::/\n", {"cpu.max": "350000 100000\n"}, 3, id="2: whole ones of three and a half"),
        pytest.param(V2, "0::/\n", {"cpu.max": "1600000 100000\n"}, 8, id="2: more than there are"),
        pytest.param(
            V2,
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"},
            2,
            id="2: of the group above",
        ),
        pytest.param(
            V2,
            "0::/a/b\n",
            {"a/b/cpu.max": "100000 100000", "a/cpu.max": "200000 100000"},
            1,
            id="2: the least",
        ),
        pytest.param(
            V2, "0::/../x\n", {"cpu.max": "200000 100000"}, 2, id="2: the words of another namespace"
        ),
        pytest.param(V2, "0::/\n", {"cpuset.cpus.effective": "0-1,6\n"}, 3, id="2: a cpuset"),
        pytest.param(
            V2,
            "0::/a\n",
            {"a/cpuset.cpus.effective": "4\n", "a/cpu.max": "200000 100000"},
            1,
            id="2: both, cpuset less",
        ),
        pytest.param(V1, "4:cpu,cpuacct:/\n", quota("cpu,cpuacct/", -1), 8, id="1: no quota"),
        pytest.param(V1, "4:cpu,cpuacct:/\n", quota("cpu,cpuacct/", 150_000), 1, id="1: one and a half"),
        pytest.param(V1_CONTAINER, DOCKER_V1, quota("cpu,cpuacct/", 100_000), 1, id="1: in a container"),
        pytest.param(
            V1,
            DOCKER_V1,
            quota("cpu,cpuacct/docker/c1/", 400_000, 200_000) | quota("cpu,cpuacct/docker/", -1),
            2,
            id="1: the same, seen from the host",
        ),
        pytest.param(
            V1,
            DOCKER_V1,
            quota("cpu,cpuacct/docker/c1/", -1) | quota("cpu,cpuacct/docker/", 300_000),
            3,
            id="1: of the group above",
        ),
        pytest.param(
            V1_CONTAINER,
            "4:cpu,cpuacct:/docker/c1/jobs\n",
            quota("cpu,cpuacct/jobs/", 200_000),
            2,
            id="1: of a group within a container",
        ),
        pytest.param(V1_CONTAINER, DOCKER_V1, {"cpuset/cpuset.cpus": "0-3\n"}, 4, id="1: a cpuset"),
        pytest.param(
            V1_CONTAINER,
            DOCKER_V1,
            {"cpuset/cpuset.cpus": "\n", "cpuset/cpuset.effective_cpus": "0-1\n"},
            2,
            id="1: a cpuset that is its parent's",
        ),
        pytest.param(
            V1 | {"unified": "/ cgroup2 rw"},
            "4:cpu,cpuacct:/jobs\n0::/jobs\n",
            quota("cpu,cpuacct/jobs/", 200_000) | {"unified/jobs/cgroup.procs": ""},
            2,
            id="both: processors under version 1",
        ),
    ],
)
def test_the_least_of_quotas_and_cpusets_bounds_the_threads(
    mounts: Mapping[str, str], groups: str, files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    """Of this process's groups and of those above them, in both versions, as containers and hosts see them.

    Fault injection: turns red when `_upwards` gives the own group alone, or `_mounts` leaves the mount's root out.
    """
    assert expected == usable_processors(make_host(tmp_path, groups, files, mounts), EIGHT)


def test_affinity_bounds_the_threads(tmp_path: Path) -> None:
    """Whatever groups allow: the kernel says what this process may run on, where nobody says it here."""
    host = make_host(tmp_path, "0::/\n", {"cpu.max": "800000 100000"}, V2)
    assert 3 == usable_processors(host, {1, 5, 7})
    assert min(8, len(os.sched_getaffinity(0))) == usable_processors(host)
    assert 1 <= usable_processors() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cpus"), [("", set()), ("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), (" 2 , 4-4\n", {2, 4})]
)
def test_lists_of_processors_are_read(text: str, cpus: set[int]) -> None:
    """As the kernel writes them, and as people do."""
    assert cpus == parse_cpus(text)


@pytest.mark.parametrize("text", ["a", "3-1", "1-", "-1", "1-2-3", "1.5"])
def test_what_is_no_list_of_processors_is_refused(text: str) -> None:
    """The message names the part that is none."""
    with pytest.raises(ValueError, match=text):
        parse_cpus(text)
