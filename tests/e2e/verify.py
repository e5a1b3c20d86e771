"""Runs every promise on a fresh clone and prints a table: ``make verify``.

The clone starts with an empty home directory and an environment of its own (PATH, and pip's settings), so that
nothing of this checkout helps it. What the tests promise is read from the report of the clone's own `make test`.
The containers are tried where a Docker engine answers (DOCKER_HOST).
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table

from tests.e2e.idle import measure_idle
from tests.e2e.promises import PROMISES, Line, of_tests

REPOSITORY = Path(__file__).parents[2]
ANSWER = "The capital of France is Paris."
FIRST_S, SECOND_S, TEST_S = 240, 20, 720
END_S = 60
RECOVERY_S = 10
FUZZ_S = 300
SCHEDULES, SWAP_RUNS = 2_000, 30
OVERLOAD_S = 60
BENCHES = {
    "first_light": "2.7",
    "loader": "4.1",
    "convert": "4.3",
    "swap": "5.1",
    "kv_pool": "6.5",
    "engine": "6.1",
    "mixed": "6.5",
    "restart": "6.2",
}  # and the number of what it promises
ELSEWHERE = {
    "v2_vs_v1": "4.2",
    "rollback_beside": "5.5",
    "refused": "6.6",
}  # figures that another promise is of
GIVEN = ("HALOGEN_PEERS", "HALOGEN_TRACE")  # what benchmarks cannot make themselves
CONVERTER_KILLS = LOADER_KILLS = 50
IDLE_S, GROWTH_S, GROWTH_BYTES = 60, 600, 16 << 20


class Clone(NamedTuple):
    """A fresh clone, and the environment of somebody new."""

    folder: Path
    environment: dict[str, str]

    def make(self, target: str, *more: str, timeout_s: float = 1800) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", target, *more],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )


@contextlib.contextmanager
def clone() -> Iterator[Clone]:
    with tempfile.TemporaryDirectory(prefix="halogen-verify-") as temporary:
        folder = Path(temporary) / "halogen"
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        python = Path(sys.base_prefix) / "bin" / "python3"
        made = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": temporary,
            "PYTHON": str(python),
            "LANG": "C.UTF-8",
        }
        yield Clone(folder, kept | made)


def starts(fresh: Clone) -> Iterator[Line]:
    """The first and the second `make up`."""
    for name, limit_s in (("first", FIRST_S), ("second", SECOND_S)):
        began = time.monotonic()
        up = fresh.make("up", "DETACH=1")
        took_s = time.monotonic() - began
        fresh.make("down")
        good = up.returncode == 0 and ANSWER in up.stdout and took_s < limit_s
        complaint = "" if up.returncode == 0 else up.stderr.strip()[-300:]
        yield Line(f"2.1 {name} `make up` answers in under {limit_s} s", good, f"{took_s:.1f} s {complaint}")


def ends(fresh: Clone) -> Iterator[Line]:
    """Ctrl-C, and kill -9 of the launcher, leave nothing."""
    for name, number in (("Ctrl-C", signal.SIGINT), ("kill -9", signal.SIGKILL)):
        memory = shared_memory()
        with subprocess.Popen(
            ["make", "up"],
            cwd=fresh.folder,
            env=fresh.environment,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        ) as up:
            assert up.stdout is not None
            next(line for line in up.stdout if "Ctrl-C" in line)
            launcher = json.loads((fresh.folder / ".halogen" / "run" / "state.json").read_text())["pid"]
            while_up = processes_of(fresh.folder)
            os.kill(launcher, number)
            left = wait_until_empty(lambda: set(processes_of(fresh.folder).values()))
        left_memory = wait_until_empty(functools.partial(new_memory, memory))
        good = len(while_up) >= 6 and not left and not left_memory
        seen = f"{len(while_up)} processes before; left: {sorted(left) or 'none'}, memory: {sorted(left_memory) or 'none'}"
        yield Line(f"2.1 {name} leaves no process and no shared memory", good, seen)


def processes_of(folder: Path) -> dict[int, str]:
    """Processes whose working directory lies in the clone, by id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(folder) and entry.name != str(os.getpid()):
                found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("halogen-*")}


def new_memory(before: set[str]) -> set[str]:
    return shared_memory() - before


def wait_until_empty(look: Callable[[], set[str]]) -> set[str]:
    ends_at = time.monotonic() + END_S
    while (left := look()) and time.monotonic() < ends_at:
        time.sleep(0.2)
    return left


def tests(fresh: Clone) -> Iterator[Line]:
    """`make test`, and what it says of each promise."""
    report = fresh.folder / "report.xml"
    fresh.environment["PYTEST_ADDOPTS"] = f"--junitxml={report} -o junit_logging=system-out"
    setup = fresh.make("setup")
    began = time.monotonic()
    test = fresh.make("test")
    took_s = time.monotonic() - began
    good = setup.returncode == 0 and test.returncode == 0 and took_s < TEST_S
    last = (test.stdout.strip() or test.stderr.strip()).splitlines()[-1]
    yield Line("2.1 `make test` is green in at most 12 minutes", good, f"{took_s:.0f} s: {last}")
    cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    for promise, names in PROMISES.items():
        yield of_tests(promise, names, cases)


def kills(fresh: Clone) -> Iterator[Line]:
    """kill -9 of every kind of process, five times each, under load."""
    run = fresh.run(".venv/bin/python", "-m", "pytest", "-q", "tests/e2e/test_crashes.py", HALOGEN_KILLS="5")
    seen = re.findall(r"kill -9 of .*", run.stdout)
    slowest_s = max((float(s) for line in seen for s in re.findall(r"at most ([0-9.]+) s", line)), default=0)
    good = run.returncode == 0 and len(seen) == 5 and slowest_s <= RECOVERY_S
    said = "\n".join(seen) if seen else run.stdout[-500:]
    yield Line(f"3.2 kill -9, 5 times each, under load; whole again within {RECOVERY_S} s", good, said)


def converter_kills(fresh: Clone) -> Iterator[Line]:
    """kill -9 of the converter at more moments than `make test` has time for."""
    path = "tests/unit/loader/test_loader_convert_process.py"
    command = (".venv/bin/python", "-m", "pytest", "-q", "-s", "-k", "kill", path)
    run = fresh.run(*command, HALOGEN_CONVERTER_KILLS=str(CONVERTER_KILLS))
    seen = "".join(re.findall(r"killed: .*", run.stdout))
    promise = f"4.5 converter: kill -9 at {CONVERTER_KILLS} random moments leaves all or nothing"
    yield Line(promise, run.returncode == 0, seen or run.stdout[-500:])


def fuzz(fresh: Clone) -> Iterator[Line]:
    """The header reader under a fuzzer for longer than `make test` has time for."""
    path = "tests/unit/checkpoint/test_checkpoint_fuzz.py"
    run = fresh.run(".venv/bin/python", "-m", "pytest", "-q", "-s", path, HALOGEN_FUZZ_S=str(FUZZ_S))
    runs = "".join(re.findall(r"fuzzed: .*", run.stdout))
    yield Line(f"4.4 header reader, {FUZZ_S} s of fuzzing", run.returncode == 0, runs or run.stdout[-500:])


def schedules(fresh: Clone) -> Iterator[Line]:
    """More schedules of swaps and faults than `make test` has time for, and others."""
    path = "tests/simulation/test_explorer.py"
    more = {"HALOGEN_SCHEDULES": str(SCHEDULES), "HALOGEN_FIRST_SEED": "1000"}
    run = fresh.run(".venv/bin/python", "-m", "pytest", "-q", "-s", path, **more)
    seen = "".join(re.findall(r"schedules: .*", run.stdout))
    promise = f"5.2 swaps: {SCHEDULES} seeded schedules break no invariant"
    yield Line(promise, run.returncode == 0, seen or run.stdout[-500:])


def swaps(fresh: Clone) -> Iterator[Line]:
    """Schedules of swaps and faults on real processes."""
    began_s = time.monotonic()
    command = (".venv/bin/python", "-m", "pytest", "-q", "tests/e2e/test_swap_explorer.py")
    run = fresh.run(*command, HALOGEN_SWAP_RUNS=str(SWAP_RUNS))
    seen = re.findall(r"swaps: seed .*", run.stdout)
    good = run.returncode == 0 and len(seen) == SWAP_RUNS
    said = f"{len(seen)} in {time.monotonic() - began_s:.0f} s"
    promise = f"5.2 swaps: {SWAP_RUNS} seeded schedules on real processes break no invariant"
    yield Line(promise, good, said if good else run.stdout[-1000:])


def overload(fresh: Clone) -> Iterator[Line]:
    """Three times the capacity for longer than `make test` has time for."""
    command = (".venv/bin/python", "-m", "pytest", "-q", "-s", "tests/scenarios/test_overload.py")
    run = fresh.run(*command, HALOGEN_OVERLOAD_S=str(OVERLOAD_S))
    seen = "".join(re.findall(r"overload: .*", run.stdout))
    promise = f"6.6 {OVERLOAD_S} s at three times the capacity: answered whole, or told at once; memory stays"
    yield Line(promise, run.returncode == 0, seen or run.stdout[-500:])


def rest(fresh: Clone) -> Iterator[Line]:
    """What the system costs while nobody asks."""
    up = fresh.make("up", "DETACH=1")
    try:
        assert up.returncode == 0, up.stderr
        idle = measure_idle(processes_of(fresh.folder), IDLE_S, GROWTH_S)
    finally:
        fresh.make("down")
    yield Line(
        f"3.6 idle: at most 3 % of a core over {IDLE_S} s", idle.core_share <= 0.03, f"{idle.core_share:.2%}"
    )
    grown = f"{idle.before_bytes >> 20} MiB, {GROWTH_S} s later {idle.after_bytes >> 20} MiB"
    good = idle.after_bytes - idle.before_bytes < GROWTH_BYTES
    yield Line(f"3.6 idle: memory does not grow over {GROWTH_S} s", good, grown)


def containers(fresh: Clone) -> Iterator[Line]:
    """The system in containers, where a Docker engine answers."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        yield Line("3.4 docker compose", False, "not shown: no Docker engine answers; set DOCKER_HOST")
        return
    run = fresh.run("tests/e2e/compose.sh", **docker())
    for verdict, seen in re.findall(r"^(ok|FAIL) +(.*)$", run.stdout, re.MULTILINE):
        yield Line("3.4 docker compose", verdict == "ok", seen)
    yield Line("3.4 docker compose, as a whole", run.returncode == 0, f"status {run.returncode}")


def docker() -> dict[str, str]:
    """Where the engine is, and the client's settings: its `compose` may lie in the real home directory."""
    settings = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    return {"DOCKER_HOST": os.environ.get("DOCKER_HOST", ""), "DOCKER_CONFIG": settings}


def benches(fresh: Clone) -> Iterator[Line]:
    """Ours beside others, and beside what the machine gives."""
    fresh.make(".venv/.bench")
    given = {name: str(Path(os.environ[name]).absolute()) for name in GIVEN if os.environ.get(name)}
    for name, number in BENCHES.items():
        result = fresh.folder / f"{name}.json"
        run = fresh.run(".venv/bin/python", "-m", f"bench.{name}", "--json", str(result), **given)
        if run.returncode != 0:
            yield Line(f"{number} bench.{name}", False, run.stderr.strip()[-500:])
            continue
        figures = json.loads(result.read_text())["figures"]
        yield from (figure_line(name, figure) for figure in figures if figure["goal"] is not None)


def figure_line(bench: str, figure: dict[str, Any]) -> Line:
    number = next((known for part, known in ELSEWHERE.items() if part in figure["name"]), BENCHES[bench])
    value, goal, unit = figure["value"], figure["goal"], figure["unit"]
    sign, good = (">=", operator.ge) if figure["better"] == "higher" else ("<=", operator.le)
    promise = f"{number} {figure['name']} {sign} {goal:g} {unit}"
    if value is None:
        return Line(promise, False, f"not measured: {figure['skipped']}")
    return Line(promise, good(value, goal), f"{value:.2f} {unit}")


def loader_kills(fresh: Clone) -> Iterator[Line]:
    """kill -9 of the loader at many points of a load."""
    test = "tests/unit/loader/test_loader_crashes.py"
    run = fresh.run(".venv/bin/python", "-m", "pytest", "-q", test, HALOGEN_LOADER_KILLS=str(LOADER_KILLS))
    promise = f"4.5 kill -9 of the loader at {LOADER_KILLS} points: nothing wrong is READY, nothing is left"
    yield Line(promise, run.returncode == 0, run.stdout.strip().splitlines()[-1])


def main() -> int:
    console, lines = Console(), list[Line]()
    with clone() as fresh:
        for part in (
            starts,
            ends,
            tests,
            benches,
            kills,
            converter_kills,
            loader_kills,
            fuzz,
            schedules,
            swaps,
            overload,
            rest,
            containers,
        ):
            for line in part(fresh):
                console.print("ok  " if line.passed else "FAIL", line.promise, markup=False)
                lines.append(line)
    table = Table("", "promise", "seen", title="What halogen promises", show_lines=True)
    for line in lines:
        table.add_row("ok" if line.passed else "FAIL", line.promise, line.seen)
    console.print(table)
    return 0 if all(line.passed for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
