"""Children are started again when they die, ended in order, and never outlive their launcher."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.cli.supervisor import START_TRIES, Child, Command
from services.common.ending import REFUSED
from services.common.with_parent import with_parent

FOREVER = "import signal; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


def command(tmp_path: Path, code: str) -> Command:
    log = tmp_path / "child.log"
    log.touch()
    return Command(name="child", argv=(sys.executable, "-c", code), log=log, environment=dict(os.environ))


@contextlib.asynccontextmanager
async def supervised(child: Child) -> AsyncIterator[None]:
    task = asyncio.ensure_future(child.keep_running())
    yield
    await child.end(10)
    await task


async def said(path: Path, times: int) -> None:
    """Waits until the child has said "up" so often; the child writes, we are told by its file's size."""
    async with asyncio.timeout(30):
        while path.read_text().count("up") < times:  # noqa: ASYNC110  # a file cannot be awaited
            await asyncio.sleep(0.02)


async def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    """kill -9 of a child is said once and answered with a new start."""
    lines: list[str] = []
    child = Child(command(tmp_path, FOREVER), lines.append)
    async with supervised(child):
        await said(tmp_path / "child.log", 1)
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await said(tmp_path / "child.log", 2)
        assert child.pid != first
    assert (1, ["child ended with status -9"]) == (child.deaths, [line.partition(";")[0] for line in lines])


async def test_a_child_that_never_starts_is_given_up(tmp_path: Path) -> None:
    """After a few deaths in a row the launcher is told, with the child's last words."""
    child = Child(command(tmp_path, "import sys; sys.exit('no key')"), lambda _: None)
    async with supervised(child):
        await asyncio.wait_for(child.gave_up.wait(), 30)
    assert child.deaths >= START_TRIES
    assert f"child does not start: no key (log: {tmp_path / 'child.log'})" == child.describe_failure()


async def test_a_child_that_refuses_its_settings_is_given_up_at_once(tmp_path: Path) -> None:
    """It would refuse them again. Turns red when: Child.keep_running does not look at the status."""
    given_up: list[bool] = []
    child = Child(
        command(tmp_path, f"import sys; sys.exit({REFUSED})"),
        lambda _: given_up.append(child.gave_up.is_set()),
    )
    async with supervised(child):
        await asyncio.wait_for(child.gave_up.wait(), 30)
    assert given_up[0]


async def test_a_deaf_child_is_killed(tmp_path: Path) -> None:
    """SIGTERM first; SIGKILL when it is not heard in time."""
    child = Child(command(tmp_path, DEAF), lambda _: None)
    task = asyncio.ensure_future(child.keep_running())
    await said(tmp_path / "child.log", 1)
    await child.end(0.1)
    await task
    assert child.pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_children_die_with_their_launcher(tmp_path: Path) -> None:
    """kill -9 of the launcher ends its children through the kernel. Turns red when: end_with_parent does nothing."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
from services.cli.supervisor import Child, Command
log = Path({str(tmp_path / "child.log")!r})
log.touch()
child = Child(Command(name="c", argv=(sys.executable, "-c", {FOREVER!r}), log=log, environment=dict(os.environ)), print)
async def main():
    task = asyncio.ensure_future(child.keep_running())
    while child.pid is None or "up" not in log.read_text():
        await asyncio.sleep(0.02)
    print(child.pid, flush=True)
    await task
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert [child] == ended


def test_children_start_while_their_launcher_calls_over_grpc(tmp_path: Path) -> None:
    """None dies before it has become what it is to be, also where gRPC's own handlers of forks are in force.

    Fault injection: turns red when Child has end_with_parent called by a preexec_fn, for which Python forks.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    launcher = [sys.executable, "-m", "tests.unit.cli.busy_launcher", str(tmp_path / "log"), "40"]
    run = subprocess.run(launcher, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert str([0] * 40) in run.stdout.splitlines(), run.stdout + run.stderr


def test_a_command_that_is_not_there_is_said(tmp_path: Path) -> None:
    """In its log, in words; the launcher hears of a child that ended.

    Fault injection: turns red when `_become` lets OSError pass.
    """
    missing = tmp_path / "etcd"
    run = subprocess.run(with_parent([str(missing)]), capture_output=True, text=True, timeout=60, check=False)
    assert (1, f"{missing}: No such file or directory\n") == (run.returncode, run.stderr)
