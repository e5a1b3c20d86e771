"""Reads beside live traffic: bounded, at idle I/O priority, and at full speed when nobody is served."""

from __future__ import annotations

import threading

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.verified_artifact import read_header
from services.common.registry.records import EngineRecord, GenerationState
from services.loader.block_reader import BlockReader
from services.loader.io_priority import IoClass, io_class
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
    held_back = (IoClass.IDLE, f"beside live traffic: idle I/O priority, at most {BLOCK_BYTES} bytes/s")
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


def test_every_block_asks_the_pace(stored: StoredArtifact) -> None:
    """Before it is read; a read that is called off does not sit a wait out."""
    path, header = stored.path(stored.manifest.weights), read_header(stored)
    asked: list[int] = []

    class Counting:
        manners = ""

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
