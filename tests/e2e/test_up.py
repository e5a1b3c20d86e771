"""`halogen up` and `down`, as a person meets them: five processes, one answer, and nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.cli import demo, run_state
from services.cli.home import Home

HALOGEN = [sys.executable, "-m", "services.cli"]
STORIES = Path(__file__).parents[1] / "models" / "stories-v1"
ENVIRONMENT = {
    **os.environ,
    "HALOGEN_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "HALOGEN_KV_ARENA_BYTES": str(64 << 20),
}
PATIENCE_S = 90


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "a home with spaces"
    yield folder
    run_state.stop(Home(folder), patience_s=PATIENCE_S)


def halogen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HALOGEN, *arguments],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=PATIENCE_S,
        check=False,
    )


def serve_stories(home: Path) -> list[str]:
    return ["up", "--home", str(home), "--serve", str(STORIES), "--model", "stories"]


@contextlib.contextmanager
def foreground(home: Path) -> Iterator[subprocess.Popen[str]]:
    """The launcher, once it says that it runs."""
    with subprocess.Popen(
        [*HALOGEN, *serve_stories(home)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as launcher:
        assert launcher.stdout is not None
        try:
            for line in launcher.stdout:
                if "Ctrl-C" in line:
                    break
            else:
                assert launcher.stderr is not None
                pytest.fail(launcher.stderr.read())
            yield launcher
        finally:
            launcher.terminate()


def children(pid: int) -> dict[str, int]:
    """Names and ids of a launcher's child processes."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                argv = (entry / "cmdline").read_text().split("\0")
                role = next((part for part in argv if part.startswith("services.")), "etcd")
                found[role.removeprefix("services.")] = int(entry.name)
    return found


def await_end(pids: list[int]) -> None:
    """Returns when all have ended; each is asked for by a descriptor, so no id can be mistaken for another's."""
    for descriptor in pids:
        ended, _, _ = select.select([descriptor], [], [], PATIENCE_S)
        assert [descriptor] == ended
        os.close(descriptor)


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def orphans() -> set[str]:
    """Directories of loaders in shared memory that no living process holds, once what is being made is made."""
    found: set[str] = set()
    ends = time.monotonic() + 5
    while (
        found := {path.name for path in Path("/dev/shm").glob("halogen-weights-*") if is_orphan(path)}
    ) and (time.monotonic() < ends):
        time.sleep(0.1)
    return found


def is_orphan(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True
    return False


def test_ctrl_c_leaves_nothing_behind(home: Path) -> None:
    """Five processes while it runs; none, and no shared memory, after."""
    with foreground(home) as launcher:
        running = children(launcher.pid)
        descriptors = [os.pidfd_open(pid) for pid in running.values()]
        asked = (
            "generate",
            "Once upon a time",
            "--home",
            str(home),
            "--max-tokens",
            "5",
            "--json",
            "--logprobs",
        )
        answer = halogen(*asked)
        launcher.send_signal(signal.SIGINT)
        assert 0 == launcher.wait(PATIENCE_S)
    assert {"etcd", "loader", "engine", "scheduler", "gateway"} == running.keys()
    told = json.loads(answer.stdout)
    assert (5, 5) == (len(told["token_ids"]), len(told["logprobs"]))
    await_end(descriptors)
    assert set() == orphans()


def test_kill_9_of_the_launcher_leaves_nothing_behind(home: Path) -> None:
    """The kernel tells the children; the loader takes its shared memory along."""
    with foreground(home) as launcher:
        descriptors = [os.pidfd_open(pid) for pid in children(launcher.pid).values()]
        assert 5 == len(descriptors)
        launcher.kill()
        await_end(descriptors)
    assert set() == orphans()


@pytest.mark.parametrize("role", ["engine", "etcd"])
def test_a_killed_process_is_started_again(home: Path, role: str) -> None:
    """kill -9 of any of the five: the system answers again, without a hand."""
    ask = (
        "generate",
        "Once upon a time",
        "--home",
        str(home),
        "--max-tokens",
        "5",
        "--json",
        "--timeout",
        "5",
    )
    with foreground(home) as launcher:
        os.kill(children(launcher.pid)[role], signal.SIGKILL)
        ends = time.monotonic() + PATIENCE_S
        while (answer := halogen(*ask)).returncode != 0:
            assert time.monotonic() < ends, answer.stderr
    assert 5 == len(json.loads(answer.stdout)["token_ids"])


def test_detached_it_returns_also_inside_a_substitution(home: Path) -> None:
    """$(...) ends although the system runs on; a second `up` finds it; `down` ends it; a second `down` is no error."""
    up = " ".join(f"'{part}'" for part in [*HALOGEN, *serve_stories(home), "--detach"])
    script = f'said=$({up}); echo "returned: $said"'
    first = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "Once upon a time" in first.stdout.partition("returned:")[2]
    second = halogen(*serve_stories(home), "--detach")
    assert (0, True) == (second.returncode, "already runs" in second.stderr)
    status = json.loads(halogen("status", "--home", str(home), "--json").stdout)
    assert [("stories", 1)] == [(cohort["model"], cohort["serving_revision"]) for cohort in status["cohorts"]]
    history = json.loads(halogen("history", "stories", "--home", str(home), "--json").stdout)
    assert [(1, "PUBLISH_STATE_APPLIED")] == [
        (each["revision"], each["outcome"]["state"]) for each in history
    ]
    stopped = [halogen("down", "--home", str(home)) for _ in range(2)]
    assert [(0, "stopped"), (0, "nothing runs")] == [
        (each.returncode, each.stderr.strip()[: len(words)])
        for each, words in zip(stopped, ("stopped", "nothing runs"), strict=True)
    ]


def test_a_process_that_cannot_start_is_named_at_once(home: Path) -> None:
    """In the foreground and in the background: one line with the reason, long before any patience is over."""
    broken = {**ENVIRONMENT, "HALOGEN_KV_ARENA_BYTES": "abc"}
    for more in ([], ["--detach"]):
        up = subprocess.run(
            [*HALOGEN, *serve_stories(home), *more],
            capture_output=True,
            text=True,
            env=broken,
            timeout=60,
            check=False,
        )
        assert 1 == up.returncode
        assert "engine does not start: python -m services.engine: --kv-arena-bytes" in up.stderr
        assert set() == orphans()
    assert "nothing runs" in halogen("down", "--home", str(home)).stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_dies_early_takes_the_background_along(home: Path, number: signal.Signals) -> None:
    """Until the first answer nothing may outlive `up --detach`. Turns red when: _settled takes any end for settled."""
    with subprocess.Popen(
        [*HALOGEN, *serve_stories(home), "--detach"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    ) as launcher:
        wait_for((home / "run" / "state.json").exists)
        supervisor = json.loads((home / "run" / "state.json").read_text())["pid"]
        descriptors = [os.pidfd_open(pid) for pid in (supervisor, *children(supervisor).values())]
        launcher.send_signal(number)
    await_end(descriptors)
    assert set() == orphans()


def test_two_systems_that_start_at_once_run_side_by_side(home: Path, tmp_path: Path) -> None:
    """Each from its own home, on ports of its own, with what it was told to serve."""
    other = tmp_path / "other"
    try:
        with ThreadPoolExecutor() as threads:
            ups = list(threads.map(lambda folder: halogen(*serve_stories(folder), "--detach"), (home, other)))
        assert [0, 0] == [up.returncode for up in ups], [up.stderr for up in ups]
        states = [json.loads((folder / "run" / "state.json").read_text()) for folder in (home, other)]
        taken = [{*state["addresses"].pop("http").values(), *state["addresses"].values()} for state in states]
        assert (10, set()) == (len(taken[0]), taken[0] & taken[1])
    finally:
        halogen("down", "--home", str(other))


def test_what_is_missing_is_said_in_one_line(home: Path, tmp_path: Path) -> None:
    """No such directory, no such model format: one line that says what to do, and status 1."""
    absent = halogen("up", "--home", str(home), "--serve", str(tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    empty = halogen("up", "--home", str(home), "--serve", str(tmp_path / "empty"))
    other = halogen("up", "--home", str(home), "--model-path", str(STORIES), "--load-format", "v2")
    assert (
        f"holds a model in safetensors, and --load-format asks for v2; convert it: halogen convert {STORIES} OUT"
        in (" ".join(other.stderr.split()))
    )
    for result in (absent, empty, other):
        assert (1, 1) == (result.returncode, result.stderr.strip().count("halogen:"))
    assert "give a Hugging Face directory" in empty.stderr
    nobody = halogen("status", "--address", "127.0.0.1:1")
    assert (1, True) == (nobody.returncode, "halogen up" in nobody.stderr)


@pytest.mark.xdist_group("smollm2")
def test_the_demo_model_answers(smollm2: demo.DemoModel) -> None:
    """The first thing that a newcomer sees is right."""
    root = smollm2.artifact.parents[1]
    up = halogen("up", "--home", str(root), "--detach")
    try:
        assert 0 == up.returncode, up.stderr
        assert "The capital of France is Paris." in up.stdout
        assert "tokens/s" in up.stdout
    finally:
        halogen("down", "--home", str(root))


@contextlib.contextmanager
def served_over_http(folder: Path) -> Iterator[str]:
    """A plain HTTP server of a folder; gives its URL."""
    command = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "0",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split()[5]}/"
        finally:
            server.terminate()


def test_an_artifact_of_an_http_store_is_served_by_one_command(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detached, so that the supervisor hears of the store, too.

    Fault injection: detached.serve does not tell the supervisor of the store.
    """
    made = json.loads(halogen("convert", str(STORIES), str(tmp_path / "made"), "--json").stdout)
    (tmp_path / "store").mkdir()
    (tmp_path / "made").rename(tmp_path / "store" / made["artifact_id"])
    monkeypatch.setitem(ENVIRONMENT, "HALOGEN_CACHE_DIR", str(tmp_path / "cache"))
    with served_over_http(tmp_path / "store") as url:
        what = ["--store", url, "--model", "stories", "--model-path", made["artifact_id"]]
        started = halogen("up", "--home", str(home), "--detach", *what)
        assert 0 == started.returncode, started.stderr
        answer = halogen("generate", "Once upon a time", "--home", str(home), "--max-tokens", "5", "--json")
    assert 5 == len(json.loads(answer.stdout)["token_ids"])
