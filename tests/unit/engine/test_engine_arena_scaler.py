"""The arena scales: memory is taken where it is used and goes back to the host, and nothing that is lent is touched."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from services.common.memory_guard import UNGUARDED, Bound, MemoryGuard
from services.engine.arena import Arena
from services.engine.arena_scaler import ArenaScaler
from services.engine.autoscale import Autoscale
from services.engine.demand import Demand
from services.engine.memory_pressure import Signs
from services.engine.span_set import Span

MIB = 1 << 20
BLOCK = 64 << 10


class Scaled:
    """An arena with its scaler; what it is told, and what it tells."""

    def __init__(
        self, floor_mib: int = 8, most_mib: int = 64, guard: MemoryGuard = UNGUARDED, min_free: float = 0
    ) -> None:
        self.arena = Arena(floor_mib * MIB, most_mib * MIB, min_free)
        self.signs = Signs(0, 0)
        self.told: list[int] = []
        autoscale = Autoscale(floor_mib * MIB, most_mib * MIB, notice_s=0)
        self.scaler = ArenaScaler(self.arena, autoscale, (guard,), lambda: self.signs, self.told.append)

    def press(self) -> None:
        self.signs = self.signs._replace(events=self.signs.events + 1)


async def test_it_grows_while_requests_fill_it_and_tells_what_may_be_promised() -> None:
    """A quarter more at each look, from 8 MiB on, less the part that is left to those that grow.

    Fault injection: turns red when look tells nobody, or tells what the arena has in all.
    """
    scaled = Scaled(min_free=0.5)
    with scaled.arena.pool.reserve(BLOCK, 64):
        await scaled.scaler.look()
        assert ([4 * MIB], 8 * MIB) == (scaled.told, scaled.arena.pool.total_bytes)
    with scaled.arena.pool.reserve(BLOCK, 64) as reservation:
        reservation.grow(64)
        await scaled.scaler.look()
    assert ([4 * MIB, 5 * MIB], 10 * MIB) == (scaled.told, scaled.arena.pool.total_bytes)
    scaled.arena.pool.check_spans()


async def test_it_grows_no_further_than_the_memory_guard_allows() -> None:
    """What of it was never touched counts as taken: it may be used at any moment.

    Fault injection: turns red when _view leaves out untouched_bytes.
    """
    held = 20 * MIB
    guard = MemoryGuard(0.5, lambda: [Bound("this host", 100 * MIB, held)])
    scaled = Scaled(floor_mib=24, guard=guard)
    with scaled.arena.pool.reserve(BLOCK, 24 * 16):
        await scaled.scaler.look()
        assert (24 + 6) * MIB == scaled.arena.pool.total_bytes
        await scaled.scaler.look()
        assert (24 + 6) * MIB == scaled.arena.pool.total_bytes, "20 held, 30 untouched, of 50"


@pytest.mark.parametrize(("swap_mib", "size_mib"), [(6, 10), (7, 8)])
async def test_it_leaves_room_for_what_is_copied_out_of_it(swap_mib: int, size_mib: int) -> None:
    """Requests that are set back may take that at any moment.

    Fault injection: turns red when _view leaves out swap_bytes.
    """
    guard = MemoryGuard(1, lambda: [Bound("this host", 16 * MIB, 0)])
    scaled = Scaled(floor_mib=8, guard=guard)
    scaled.scaler.demand = lambda: Demand(swap_bytes=swap_mib * MIB)
    with scaled.arena.pool.reserve(BLOCK, 8 * 16):
        await scaled.scaler.look()
    assert size_mib * MIB == scaled.arena.pool.total_bytes


async def test_memory_goes_back_to_the_host_under_pressure() -> None:
    """Free stretches, wherever they lie; the arena shrinks to what is used, and to its floor when nothing is.

    Fault injection: turns red when discard is left out, for what is given up or for what is free.
    """
    scaled = Scaled(floor_mib=8)
    pool, blocks = scaled.arena.pool, scaled.arena.blocks(BLOCK)
    pool.extend(32 * MIB)
    blocks[: 32 * 16].fill_(7)
    assert 0 == scaled.arena.untouched_bytes
    await scaled.scaler.look()
    first = pool.reserve(BLOCK, 16)
    with pool.reserve(BLOCK, 16 * 15) as second:
        first.close()
        scaled.press()
        await scaled.scaler.look()
        assert 18 * MIB == pool.total_bytes, "16 are used, of 0.9"
        assert 3 * MIB == scaled.arena.untouched_bytes, "the first of them is free again, and two at the end"
        assert all(bool((blocks[second.take()] == 7).all()) for _ in range(16 * 15))
    scaled.press()
    await scaled.scaler.look()
    assert (8 * MIB, 8 * MIB) == (pool.total_bytes, scaled.told[-1])
    pool.extend(32 * MIB)
    assert 32 * MIB == scaled.arena.untouched_bytes


async def test_what_is_waited_for_counts_as_used() -> None:
    """Also where memory is short: whoever waits for so much could else wait for ever.

    Fault injection: turns red when _view leaves out what is waited for.
    """
    scaled = Scaled(floor_mib=8)
    scaled.arena.pool.extend(32 * MIB)
    await scaled.scaler.look()
    scaled.scaler.demand = lambda: Demand(waiting_bytes=27 * MIB)
    scaled.press()
    await scaled.scaler.look()
    assert 30 * MIB == scaled.arena.pool.total_bytes


async def test_what_is_promised_counts_as_used() -> None:
    """Schedulers grant no more once all of it is, though requests have not taken it yet.

    Fault injection: turns red when _view looks at what is in use alone.
    """
    scaled = Scaled(floor_mib=8)
    scaled.scaler.demand = lambda: Demand(promised_bytes=7 * MIB)
    await scaled.scaler.look()
    assert 10 * MIB == scaled.arena.pool.total_bytes


async def test_a_load_that_needs_memory_gets_it() -> None:
    """At once, without waiting for a look; the next look tells."""
    scaled = Scaled()
    scaled.arena.pool.extend(64 * MIB)
    scaled.scaler.make_room()
    assert 8 * MIB == scaled.arena.pool.total_bytes
    await scaled.scaler.look()
    assert [8 * MIB] == scaled.told


async def test_an_arena_that_cannot_grow_is_left_alone() -> None:
    """Neither looked at nor emptied."""
    scaled = Scaled(floor_mib=8, most_mib=8)
    scaled.arena.blocks(BLOCK).fill_(1)
    await scaled.scaler.follow()
    scaled.scaler.make_room()
    assert ([], 0) == (scaled.told, scaled.arena.untouched_bytes)


def test_lent_bytes_are_never_touched() -> None:
    """Requests come, write, read what they wrote, and go, while another thread gives back and takes all that it can.

    Fault injection: turns red when _discard_free looks at free_spans without withholding them.
    """
    scaled, chance = Scaled(floor_mib=2, most_mib=16), random.Random(6)
    pool, blocks = scaled.arena.pool, scaled.arena.blocks(BLOCK).view(torch.int64)
    stop, failures = threading.Event(), list[Exception]()

    def scale() -> None:
        try:
            while not stop.is_set():
                scaled.scaler.make_room()
                with pool.lock:
                    pool.extend(max(pool.total_bytes, 16 * MIB))
        except Exception as failure:  # noqa: BLE001  # told below
            failures.append(failure)

    other = threading.Thread(target=scale)
    other.start()
    try:
        for mark in range(300):
            _write_and_read(scaled, blocks, chance.randint(1, 24), mark)
    finally:
        stop.set()
        other.join()
    assert [] == failures
    pool.check_spans()


def _write_and_read(scaled: Scaled, blocks: torch.Tensor, count: int, mark: int) -> None:
    with scaled.arena.pool.lock:
        if not scaled.arena.pool.can_reserve(BLOCK, count):
            return
        reservation = scaled.arena.pool.reserve(BLOCK, count)
    with reservation:
        taken = [reservation.take() for _ in range(count)]
        for block in taken:
            blocks[block].fill_(mark)
        assert all(bool((blocks[block] == mark).all()) for block in taken)


def test_memory_that_the_kernel_keeps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks hears of it; nothing is lost."""
    scaled = Scaled()
    monkeypatch.setattr("services.engine.arena._libc.madvise", lambda *_: -1)
    with pytest.raises(OSError, match="cannot be given back"):
        scaled.arena.discard(Span(0, MIB))


async def test_looking_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not end for memory that it could not give back."""
    scaled = Scaled()
    looked = threading.Event()

    def signs() -> Signs:
        if looked.is_set():
            raise RuntimeError("enough")  # ends what never ends
        looked.set()
        raise OSError("no such file")

    scaled.scaler.signs = signs
    monkeypatch.setattr("services.engine.arena_scaler.LOOK_S", 0)
    with pytest.raises(RuntimeError, match="enough"):
        await scaled.scaler.follow()
