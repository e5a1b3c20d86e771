"""Reads beside live traffic: bounded, at idle I/O priority, and at full speed when nobody is served."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.verified_artifact import read_header
from services.common.registry.records import EngineRecord, GenerationState
from services.loader.block_reader import BlockReader
from services.loader.idle_time import idle_s
from services.loader.io_priority import IoClass, io_class
from services.loader.live_rate import LEAST_BYTES_PER_S, LOOK_S, LiveRate
from services.loader.pace import GentlePace
from services.loader.sink import ScratchSink
from services.loader.token_bucket import TokenBucket
from services.loader.traffic import Traffic
from tests.unit.loader.engines import engine


@pytest.mark.parametrize(
    ("burst", "takes", "waits"),
    [
        (0, [(10, 0)], [1.0]),
        (10, [(10, 0), (10, 0), (10, 0)], [0.0, 1.0, 2.0]),
        (10, [(10, 0), (10, 1), (10, 2)], [0.0, 0.0, 0.0]),
        (10, [(10, 0), (10, 0), (10, 1.5)], [0.0, 1.0, 0.5]),
        (10, [(10, 100), (20, 100)], [0.0, 2.0]),
        (5, [(10, 0), (0, 0), (0, 0.5)], [0.5, 0.5, 0.0]),
    ],
)
def test_no_more_than_the_rate_is_taken(
    burst: float, takes: list[tuple[float, float]], waits: list[float]
) -> None:
    """10 bytes a second: who asks waits behind those who asked before; rests are not saved up beyond the burst."""
    bucket = TokenBucket(10, burst, 0)
    assert waits == [bucket.take(int(size), now_s) for size, now_s in takes]


class Waits(threading.Event):
    """An event that is never set, and remembers how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s.append(timeout or 0)
        return False


def test_a_read_beside_live_traffic_holds_back_and_others_do_not() -> None:
    """Priority and bandwidth follow the traffic from block to block.

    Fault injection: turns red when GentlePace.before does not look at the traffic.
    """
    live, stop = [False], Waits()
    pace = GentlePace(lambda: live[0], BLOCK_BYTES, clock_s=lambda: 0.0)
    seen: list[tuple[IoClass, str]] = []

    def read() -> None:
        for is_live in (False, True, True, False):
            live[0] = is_live
            pace.before(BLOCK_BYTES, stop)
            seen.append((io_class(), pace.manners))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    held_back = (
        IoClass.IDLE,
        f"beside live traffic: idle I/O priority, at most {BLOCK_BYTES} bytes/s, fewer with busy cores",
    )
    free = (IoClass.NORMAL, "")
    assert [free, held_back, held_back, free] == seen
    assert [0.0, 1.0] == stop.waited_s
    assert IoClass.NORMAL is io_class(), "it is the reading thread's alone"


def test_no_bound_is_idle_priority_alone() -> None:
    """0 switches the bandwidth's bound off."""
    stop = Waits()
    pace = GentlePace(lambda: True, 0)
    thread = threading.Thread(target=pace.before, args=(BLOCK_BYTES, stop))
    thread.start()
    thread.join()
    assert ([], "beside live traffic: idle I/O priority") == (stop.waited_s, pace.manners)


@pytest.mark.parametrize(
    ("idle_cores", "bytes_per_s"),
    [(0.0, LEAST_BYTES_PER_S), (0.4, 300_000_000), (2.0, 1 << 30)],
)
def test_reads_take_a_part_of_what_is_idle(idle_cores: float, bytes_per_s: int) -> None:
    """A quarter of the idle time, never more than the bound, and never nothing.

    Fault injection: turns red when LiveRate.look leaves out the share, the bound or the least.
    """
    rate = LiveRate(1 << 30, 0.0)
    rate.look(70.0, 0.0)
    assert 1 << 30 == rate.bytes_per_s, "one look tells nothing"
    assert (False, True) == (rate.is_due(LOOK_S / 2), rate.is_due(0.5))
    rate.look(70.0 + 0.5 * idle_cores, 0.5)
    assert pytest.approx(bytes_per_s) == rate.bytes_per_s


def test_the_rate_is_that_of_the_last_look() -> None:
    """While the cores are busy a block waits its turn at the least rate; at the full one as soon as they are not.

    Fault injection: turns red when GentlePace does not hand the rate to its bucket.
    """
    now_s, idle, stop = [0.0], [0.0], Waits()
    pace = GentlePace(lambda: True, 1 << 30, clock_s=lambda: now_s[0], idle_s=lambda: idle[0])

    def read() -> None:
        for idle_cores in (0, 0, 2):
            pace.before(BLOCK_BYTES, stop)
            now_s[0] += 1
            idle[0] += idle_cores
            pace.before(BLOCK_BYTES, stop)
            pace.before(BLOCK_BYTES, stop)
            now_s[0] += 1
            idle[0] += idle_cores

    thread = threading.Thread(target=read)  # its priority goes with it
    thread.start()
    thread.join()
    busy, free = BLOCK_BYTES / LEAST_BYTES_PER_S, BLOCK_BYTES / (1 << 30)
    waits = pytest.approx([0, 0, busy, 0, 0, busy, 0, 0, free])
    assert waits == stop.waited_s


def test_the_kernel_counts_idle_time(tmp_path: Path) -> None:
    """Of all cores, waits for a disk included; it only grows."""
    (tmp_path / "stat").write_text("cpu  9 9 9 300 200 9 9 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n")
    assert 500 / os.sysconf("SC_CLK_TCK") == idle_s(tmp_path / "stat")
    assert idle_s() <= idle_s()


def test_every_block_asks_the_pace(stored: StoredArtifact) -> None:
    """Before it is read; a read that is called off does not sit a wait out."""
    path, header = stored.path(stored.manifest.weights), read_header(stored)
    asked: list[int] = []

    class Counting:
        manners = ""
        holds_back = True

        def before(self, size_bytes: int, stop: threading.Event) -> None:
            asked.append(size_bytes)

    reader = BlockReader(path, header, 2, pace=Counting())
    reader.read_into(ScratchSink(), lambda _: None, threading.Event())
    assert [BLOCK_BYTES] * 3 == asked


@pytest.mark.parametrize(
    ("engines", "is_live"),
    [
        ([], False),
        ([engine("here")], False),
        ([engine("here", GenerationState.FETCHING), engine("here", GenerationState.FAILED)], False),
        ([engine("here", GenerationState.ACTIVE)], True),
        ([engine("here", GenerationState.FETCHING, GenerationState.DRAINING)], True),
        ([engine("there", GenerationState.ACTIVE)], False),
        ([engine("there", GenerationState.ACTIVE), engine("here", GenerationState.ACTIVE)], True),
    ],
)
def test_engines_of_this_host_that_serve_are_live_traffic(engines: list[EngineRecord], is_live: bool) -> None:
    """Whatever container they run in; what is still loading serves nobody."""
    traffic = Traffic("here")
    traffic.hear(engines)
    assert is_live == traffic.is_live
    traffic.hear([])
    assert not traffic.is_live
