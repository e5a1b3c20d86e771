"""Runs every promise on a fresh clone and prints a table: ``make verify``.

The clone starts with an empty home directory and an environment of its own (PATH, and pip's settings), so that
nothing of this checkout helps it. What the tests promise is read from the report of the clone's own `make test`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parents[2]
ANSWER = "The capital of France is Paris."
FIRST_S, SECOND_S, TEST_S = 240, 20, 720
END_S = 60

# What each promise's tests are called; all that match must pass, and there must be one.
TESTS = {
    "2 fp32 ids equal transformers'; bf16 margins": ["test_exactness"],
    "3 64 streams, full arena, conservation; one chunk": ["test_64_streams", "test_a_long_prompt_delays"],
    "4 weights shared; a flipped byte is REJECTED": [
        "test_the_engine_uses_the_loaders",
        "test_a_flipped_byte",
    ],
    "5 reflection; status --json": ["test_a_client_without_stubs", "test_status_shows", "test_detached_it"],
    "6 rows of reported faults": [f"test_s_{row}_" for row in ("b1", "d1", "d2", "d4", "d7", "f1")],
}


class Line(NamedTuple):
    promise: str
    passed: bool
    seen: str


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
        yield Line(f"1 {name} `make up` answers in under {limit_s} s", good, f"{took_s:.1f} s {complaint}")


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
            left = wait_until_empty(lambda: processes_of(fresh.folder))
        left_memory = wait_until_empty(functools.partial(new_memory, memory))
        good = len(while_up) >= 6 and not left and not left_memory
        seen = f"{len(while_up)} processes before; left: {sorted(left) or 'none'}, memory: {sorted(left_memory) or 'none'}"
        yield Line(f"1 {name} leaves no process and no shared memory", good, seen)


def processes_of(folder: Path) -> set[str]:
    """Processes whose program or working directory lies in the clone."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(folder) and entry.name != str(os.getpid()):
                found.add(f"{entry.name} {(entry / 'comm').read_text().strip()}")
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
    yield Line("1 `make test` is green in at most 12 minutes", good, f"{took_s:.0f} s: {last}")
    cases = list(ET.parse(report).iter("testcase")) if report.exists() else []
    for promise, names in TESTS.items():
        yield of_tests(promise, names, cases)


def of_tests(promise: str, names: list[str], cases: list[ET.Element]) -> Line:
    bad, said = [], []
    for name in names:
        matching = [case for case in cases if name in f"{case.get('classname')}.{case.get('name')}"]
        bad += [f"no test {name}"] * (not matching)
        bad += [
            str(case.get("name"))
            for case in matching
            if case.find("failure") is not None
            or case.find("error") is not None
            or case.find("skipped") is not None
        ]
        said += [f"{len(matching)} x {name}", *figures(matching)]
    return Line(promise, not bad, "\n".join(bad or said))


def figures(cases: list[ET.Element]) -> list[str]:
    """Lines with figures that the tests printed."""
    texts = [case.findtext("system-out") or "" for case in cases]
    return [
        line
        for text in texts
        for line in text.splitlines()
        if re.match(r"(peak|checks|smaps|steps|exact)", line)
    ]


def bench(fresh: Clone) -> Iterator[Line]:
    """Ours, served, beside transformers."""
    result = fresh.folder / "figures.json"
    command = [str(fresh.folder / ".venv/bin/python"), "bench/first_light.py", "--json", str(result)]
    run = subprocess.run(
        command, cwd=fresh.folder, env=fresh.environment, capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        yield Line("7 bench/first_light.py", False, run.stderr.strip()[-500:])
        return
    for figure in json.loads(result.read_text())["figures"]:
        if figure["goal"] is not None:
            good = figure["value"] >= figure["goal"]
            yield Line(f"7 {figure['name']} >= {figure['goal']}", good, f"{figure['value']:.2f} x")


def main() -> int:
    console, lines = Console(), list[Line]()
    with clone() as fresh:
        for part in (starts, ends, tests, bench):
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
