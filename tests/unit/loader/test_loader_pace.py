"""Reads beside live traffic: bounded, at idle priority, and at full speed when nobody is served."""

from __future__ import annotations

import threading

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.verified_artifact import read_header
from services.common.registry.records import EngineRecord, GenerationState
from services.loader.block_reader import BlockReader
from services.loader.cpu_class import is_idle
from services.loader.io_priority import IoClass, io_class
from services.loader.pace import SMALL_LOAD_BYTES, FullSpeed, GentlePace
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

    Fault injection: turns red when GentlePace.before or stand_back does not look at the traffic.
    """
    live, stop = [False], Waits()
    pace = GentlePace(lambda: live[0], BLOCK_BYTES, clock_s=lambda: 0.0)
    seen: list[tuple[IoClass, str]] = []

    def read() -> None:
        for is_live in (False, True, True, False):
            live[0] = is_live
            pace.stand_back(SMALL_LOAD_BYTES + 1)
            pace.before(BLOCK_BYTES, stop)
            seen.append((io_class(), pace.manners))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    held_back = (
        IoClass.IDLE,
        f"beside live traffic: idle CPU and I/O priority, at most {BLOCK_BYTES} bytes/s",
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
    assert ([], "beside live traffic: idle CPU and I/O priority") == (stop.waited_s, pace.manners)


class Watched(FullSpeed):
    """Says that somebody is served, and remembers which thread asked what."""

    stands_back = True

    def __init__(self) -> None:
        self.read: list[tuple[int, threading.Thread]] = []
        self.stood_back: list[tuple[int, threading.Thread]] = []

    def before(self, size_bytes: int, stop: threading.Event) -> None:
        self.read.append((size_bytes, threading.current_thread()))

    def stand_back(self, load_bytes: int) -> None:
        self.stood_back.append((load_bytes, threading.current_thread()))


def test_every_block_asks_the_pace(stored: StoredArtifact) -> None:
    """Before it is read, by the thread that reads it."""
    path, header = stored.path(stored.manifest.weights), read_header(stored)
    pace = Watched()
    BlockReader(path, header, 2, pace=pace, longest_wait_s=60).read_into(
        ScratchSink(), lambda _: None, threading.Event()
    )
    assert [BLOCK_BYTES] * 3 == [size_bytes for size_bytes, _ in pace.read]
    assert [(header.data_bytes, thread) for _, thread in pace.read] == pace.stood_back


def test_threads_that_get_no_time_are_relieved(stored: StoredArtifact) -> None:
    """Where those that stand back get nothing done, the caller's own thread, which does not, reads in their place.

    Fault injection: turns red when BlockReader._relieve reads nothing, or stands back itself.
    """
    path, header = stored.path(stored.manifest.weights), read_header(stored)
    others, caller = threading.Event(), threading.current_thread()

    class Starved(Watched):
        def before(self, size_bytes: int, stop: threading.Event) -> None:
            super().before(size_bytes, stop)
            if threading.current_thread() is caller:
                others.set()
            else:
                assert others.wait(30)  # until the caller has come

    pace = Starved()
    sink, told = ScratchSink(), list[int]()
    BlockReader(path, header, 1, pace=pace, longest_wait_s=0.001).read_into(
        sink, told.append, threading.Event()
    )
    assert 3 * BLOCK_BYTES == sum(told)
    assert caller in {thread for _, thread in pace.read}
    assert caller not in {thread for _, thread in pace.stood_back}


def test_a_thread_behind_everybody_runs_as_an_idle_one() -> None:
    """Beside live traffic a thread leaves the cores to others for good; a small load is over before that matters.

    Fault injection: turns red when GentlePace.stand_back does not call turn_idle, or calls it for small loads.
    """
    live, seen = [False], list[bool]()
    pace = GentlePace(lambda: live[0], 0)

    def read() -> None:
        for is_live, load_bytes in (
            (False, 1 << 40),
            (True, SMALL_LOAD_BYTES),
            (True, 1 << 40),
            (False, 1 << 40),
        ):
            live[0] = is_live
            pace.stand_back(load_bytes)
            seen.append(is_idle())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert [False, False, True, True] == seen
    assert not is_idle(), "it is the reading thread's alone"


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
