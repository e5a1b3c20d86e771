"""The converter as a process: what it needs of memory, and what is left when it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.verified_artifact import verify_small_files, verify_weights
from tests.sparse_checkpoint import GIGABYTE, write_sparse_checkpoint
from tests.tiny_checkpoints import MULTI_BLOCK, write_tiny_checkpoint

MIB = 1 << 20
PROGRAM = """
import re, sys
from services.loader.convert import main
status = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(status)
"""


@pytest.mark.slow
def test_a_gigabyte_passes_through_little_memory(tmp_path: Path) -> None:
    """At most twice the largest tensor and 256 MiB: Python, another dtype and the validation included.

    Fault injection: `_write_weights` reads every tensor into a list before it writes the first.
    """
    largest_bytes = write_sparse_checkpoint(tmp_path / "source", GIGABYTE)
    arguments = ["--progress", "none", "--quant-policy", "bf16", "--validate", "full"]
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(tmp_path / "source"),
        str(tmp_path / "artifact"),
        *arguments,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    peak_bytes = int(ended.stdout.splitlines()[-1]) << 10
    assert peak_bytes <= 2 * largest_bytes + 256 * MIB
    assert read_manifest(tmp_path / "artifact").weights.size_bytes > 450 * MIB


def run_until(source: Path, destination: Path, patience_s: float | None) -> float:
    """Converts, and kills the converter so long after its first sign of life (None: lets it end).

    Returns:
        The seconds that it lived after that.
    """
    command = [sys.executable, "-m", "services.loader.convert", str(source), str(destination)]
    command += ["--progress", "json", "--validate", "full"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        begun = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        process.kill()
    return time.monotonic() - begun


def check_whole(artifact: Path) -> None:
    """Every file is there and matches its digest."""
    stored = StoredArtifact(artifact, read_manifest(artifact))
    verify_small_files(stored)
    verify_weights(stored)


KILLS = int(os.environ.get("HALOGEN_CONVERTER_KILLS", "10"))


def test_two_build_hosts_give_one_artifact_id(tmp_path: Path) -> None:
    """Whatever time, place, language, rights and order of files and sets they have, and however the source is cut.

    Fault injection: `tensor_factors` sorts by the `hash` of the names.
    """
    one = write_tiny_checkpoint(tmp_path / "one", shards=3)
    other = write_tiny_checkpoint(tmp_path / "elsewhere/other")
    for age, path in enumerate(sorted(other.iterdir(), reverse=True)):
        os.utime(path, (age, age))
    hosts: list[tuple[Path, int, dict[str, str]]] = [
        (one, 0o022, {"PYTHONHASHSEED": "0", "TZ": "UTC", "LANG": "C"}),
        (other, 0o077, {"PYTHONHASHSEED": "1", "TZ": "Asia/Kathmandu", "LANG": "de_DE.UTF-8"}),
    ]
    ids = set()
    for source, umask, environment in hosts:
        artifact = source.with_name("artifact")
        command = [sys.executable, "-m", "services.loader.convert", str(source), str(artifact)]
        command += ["--progress", "none"]
        ended = subprocess.run(
            command, env=os.environ | environment, umask=umask, capture_output=True, text=True, check=True
        )
        ids.add(ended.stdout)
    assert 1 == len(ids)
    assert {read_manifest(one.with_name("artifact")).id} == {found.strip() for found in ids}


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
from services.loader.convert import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_takes_no_more_is_one_line(tmp_path: Path) -> None:
    """In the middle of the weights, 8 MiB into them: the remedy is told, and nothing is left.

    Fault injection: `run_command` catches no OSError.
    """
    source = write_tiny_checkpoint(tmp_path / "source", MULTI_BLOCK)
    arguments = [str(source), str(tmp_path / "artifact"), "--progress", "none"]
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, check=False
    )
    assert (1, "") == (ended.returncode, ended.stdout)
    assert "error: file too large while OUT was written; give another OUT, or make room\n" == ended.stderr
    assert [source] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * KILLS)
def test_a_kill_at_any_moment_leaves_all_or_nothing(tmp_path: Path) -> None:
    """Moments from the first byte to past the last: the destination is absent or whole, and the next start sweeps.

    Fault injection: `Destination.workshop` gives the destination itself.
    """
    source = write_tiny_checkpoint(tmp_path / "source", MULTI_BLOCK)
    destination = tmp_path / "artifact"
    whole_s = run_until(source, destination, None)
    check_whole(destination)
    expected = read_manifest(destination).id
    chance, in_the_middle, torn = random.Random(4), 0, 0
    for _ in range(KILLS):
        shutil.rmtree(destination, ignore_errors=True)
        run_until(source, destination, chance.uniform(0, 1.3 * whole_s))
        torn += any(path.name.startswith(".artifact") for path in tmp_path.iterdir())
        if destination.exists():
            check_whole(destination)
            assert expected == read_manifest(destination).id
        else:
            in_the_middle += 1
    print(
        f"killed: {KILLS} times, {in_the_middle} of them before the artifact was there, {torn} left something"
    )
    assert in_the_middle
    assert torn
    run_until(source, destination, None)
    check_whole(destination)
    assert {"source", "artifact"} == {path.name for path in tmp_path.iterdir()}
