"""Artifacts over HTTP: fetched once, every byte verified on its way, kept for as long as there is room."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.header import Header
from services.common.errors import (
    Overloaded,
    Unavailable,
)
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, Bound, MemoryGuard
from services.loader.artifacts import Artifacts
from services.loader.directory_place import DirectoryPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.residents import Prepared
from services.loader.small_reads import read_small
from tests.scrape import read
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.loader.cached import QUICK, Heard, bring_all, content_of, files_in, open_cached
from tests.unit.loader.disk import flip
from tests.unit.loader.store_server import StoreServer

WEIGHTS, TOKENIZER, MANIFEST = "model.halogen", "tokenizer.json", "manifest.json"


async def test_an_artifact_is_fetched_once(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """Byte for byte, the progress to its end; the second time nobody is asked for anything."""
    registry, heard = CollectorRegistry(), Heard()
    async with open_cached(server.url, cache_dir, registry=registry) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id, heard)
        assert (stored.manifest.total_bytes,) * 2 == (heard.expected_bytes, heard.done_bytes)
        asked = len(server.asked)
        again = Heard()
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id, again)
    assert (asked, 0, 0) == (len(server.asked), again.expected_bytes, again.done_bytes)
    assert {file.sha256 for file in stored.manifest.files} == files_in(cache_dir)
    told, count = read(registry), len(stored.manifest.files)
    assert (count, count) == (
        told.value("halogen_cache_hits_total"),
        told.value("halogen_cache_misses_total"),
    )
    assert stored.manifest.total_bytes == told.value("halogen_fetched_bytes_total")


async def test_what_is_in_the_cache_needs_no_store(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """A store that is gone takes away only what never came."""
    async with open_cached(server.url, cache_dir) as artifacts:
        await bring_all(artifacts, stored.manifest.id)
    async with open_cached("http://127.0.0.1:9/", cache_dir) as artifacts:
        assert artifacts.is_reachable
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)
        with pytest.raises(Unavailable, match="--store") as failure:
            await bring_all(artifacts, ArtifactId("0" * 64))
    assert ("STORE_UNREACHABLE", 1.0) == (failure.value.reason, failure.value.retry_after_s)


async def test_files_that_artifacts_share_come_once(
    tmp_path: Path, store: ArtifactStore, server: StoreServer, cache_dir: Path
) -> None:
    """Two artifacts with one tokenizer have one file of it."""
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(2)]
    for directory, _ in made:
        store.put(directory)
    async with open_cached(server.url, cache_dir) as artifacts:
        for _, manifest in made:
            await bring_all(artifacts, manifest.id)
    assert (1, 1) == (len(server.asked_for(TOKENIZER)), len(server.asked_for("config.json")))
    assert 6 == len(server.asked_for(WEIGHTS))  # of each the start, the rest of the header, the data


async def test_a_store_that_takes_no_ranges_is_read_in_one_go(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """As simple servers are: the start is asked for apart, then all at once."""
    server.ranges = False
    heard = Heard()
    async with open_cached(server.url, cache_dir, connections=4) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id, heard)
    assert 3 == len(server.asked_for(WEIGHTS))
    assert heard.expected_bytes == heard.done_bytes


async def test_a_lost_connection_costs_nothing_that_was_verified(
    server: StoreServer, stored: StoredArtifact, header: Header, cache_dir: Path
) -> None:
    """The next request begins where the last one broke off, also within a block.

    Fault injection: RemoteStream.fill goes back to where it began when a request breaks off.
    """
    server.cuts[WEIGHTS] = [BLOCK_BYTES + (1 << 20)]
    async with open_cached(server.url, cache_dir, connections=1) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)
    *_, first, second = server.asked_for(WEIGHTS)
    assert first.begin == header.data_offset
    assert second.begin is not None
    assert second.begin > header.block_extent(1)[0]
    assert server.sent_bytes[WEIGHTS] <= stored.manifest.weights.size_bytes + (1 << 20)


async def test_a_store_without_ranges_that_breaks_off_is_read_past_what_is_there(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """It sends all from the start: what was verified is passed over, and the bytes are right."""
    server.ranges = False
    server.cuts[WEIGHTS] = [2 * BLOCK_BYTES]
    async with open_cached(server.url, cache_dir) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)


async def test_a_download_called_off_goes_on_later_where_it_was(
    server: StoreServer, stored: StoredArtifact, header: Header, cache_dir: Path
) -> None:
    """In a loader that ended and one that begins: whole blocks stay, spoilt ones do not.

    Fault injection: missing_blocks believes what has data without digesting it.
    """

    def fail_afterwards(_name: str, _content: bytearray) -> None:
        if len(server.asked_for(WEIGHTS)) == 3:
            server.statuses[WEIGHTS] = [503] * QUICK.tries

    server.cuts[WEIGHTS] = [2 * BLOCK_BYTES + 5]
    server.spoil = fail_afterwards
    async with open_cached(server.url, cache_dir, connections=1) as artifacts:
        with pytest.raises(Unavailable, match="503"):
            await bring_all(artifacts, stored.manifest.id)
    [partial] = (path for path in (cache_dir / "artifacts/files").iterdir() if path.suffix == ".partial")
    flip(partial, header.block_extent(1)[0] + 17)
    server.asked.clear()
    server.statuses.clear()
    heard = Heard()
    async with open_cached(server.url, cache_dir, connections=1) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id, heard)
    whole = [(each.begin, each.end) for each in server.asked_for(WEIGHTS)]
    assert [(0, 64), (header.block_extent(1)[0], header.file_bytes)] == whole
    assert heard.expected_bytes == heard.done_bytes


async def test_a_slow_store_holds_nobody_else_up(
    tmp_path: Path,
    store: ArtifactStore,
    server: StoreServer,
    stored: StoredArtifact,
    shm: Path,
    cache_dir: Path,
) -> None:
    """While one artifact waits for its next byte, another is fetched, read and placed."""
    directory, manifest = make_tiny_artifact(tmp_path)
    store.put(directory)
    gate = asyncio.Event()
    async with open_cached(server.url, cache_dir) as artifacts, preparing(artifacts, shm) as preparations:
        server.gates[WEIGHTS] = gate
        slow = asyncio.create_task(prepare(preparations, stored.manifest.id))
        await server.reached[WEIGHTS].wait()
        del server.gates[WEIGHTS]
        await prepare(preparations, manifest.id)
        assert not slow.done()
        gate.set()
        prepared = await slow
        assert content_of(stored)[WEIGHTS] == Path(prepared.holding.mapped_path).read_bytes()


async def test_a_disk_that_spoils_the_cache_costs_a_fetch(
    server: StoreServer, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """Of the spoilt file alone; engines get right bytes, and the artifact is not called bad for it.

    Fault injection: CachedArtifacts.mend does nothing.
    """
    async with open_cached(server.url, cache_dir) as artifacts:
        await bring_all(artifacts, stored.manifest.id)
        file = cache_dir / "artifacts/files" / stored.manifest.weights.sha256
        file.chmod(0o644)
        flip(file, file.stat().st_size - 1)
        server.asked.clear()
        async with preparing(artifacts, shm) as preparations:
            prepared = await prepare(preparations, stored.manifest.id)
            assert content_of(stored)[WEIGHTS] == Path(prepared.holding.mapped_path).read_bytes()
        assert {WEIGHTS} == {each.name for each in server.asked}
        small = cache_dir / f"artifacts/artifacts/{stored.manifest.id}/{TOKENIZER}"
        small.chmod(0o644)
        flip(small, 5)
        content = b"".join(
            [bytes(chunk) async for chunk in read_small(artifacts, stored.manifest.id, TOKENIZER)]
        )
        assert content_of(stored)[TOKENIZER] == content


async def test_a_small_file_comes_without_the_weights(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """A gateway that wants a tokenizer waits for nothing else; the manifest itself can be read too."""
    async with open_cached(server.url, cache_dir) as artifacts:
        for name in (TOKENIZER, MANIFEST):
            chunks = [bytes(chunk) async for chunk in read_small(artifacts, stored.manifest.id, name)]
            assert (stored.directory / name).read_bytes() == b"".join(chunks)
    assert {MANIFEST, TOKENIZER} == {each.name for each in server.asked}


async def test_a_full_disk_says_what_is_needed_and_free(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a byte of the file comes; nothing half-made stays.

    Fault injection: PartialFile.allocate does nothing.
    """
    weights = stored.manifest.weights

    def allocate(descriptor: int, offset: int, length: int) -> None:
        if length == weights.size_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(descriptor, length)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(
            Overloaded, match=f"{weights.size_bytes} bytes are needed, .*free the disk"
        ) as failure:
            await bring_all(artifacts, stored.manifest.id)
    assert ("CACHE_FULL", str(weights.size_bytes)) == (
        failure.value.reason,
        failure.value.metadata["needed_bytes"],
    )
    assert [] == server.asked_for(WEIGHTS)
    assert not [name for name in files_in(cache_dir) if name.startswith(".")]


async def test_the_one_used_longest_ago_makes_room(
    tmp_path: Path, store: ArtifactStore, server: StoreServer, cache_dir: Path
) -> None:
    """Not one that is pinned, nor one in use; where these are all, the message has the arithmetic.

    Fault injection: plan_eviction sorts by nothing; CacheEntry.may_go is always true.
    """
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(4)]
    for directory, _ in made:
        store.put(directory)
    a, b, c, d = (manifest.id for _, manifest in made)
    size = made[0][1].weights.size_bytes
    registry, cache = CollectorRegistry(), CacheDirectory.of(cache_dir)
    room = 2 * size + sum(file.size_bytes for file in made[0][1].small_files) + 50_000
    async with open_cached(server.url, cache_dir, max_bytes=room, registry=registry) as artifacts:
        for each in (a, b, a, c):
            await bring_all(artifacts, each)
        assert {a, c} == {entry.name for entry in cache.entries()}
        cache.pin(a)
        async with artifacts.opened(c):
            with pytest.raises(Overloaded, match=rf"of at most {room} are taken .*halogen cache unpin"):
                await bring_all(artifacts, d)
        await bring_all(artifacts, d)
        assert {a, d} == {entry.name for entry in cache.entries()}
        cache.unpin(a)
        await bring_all(artifacts, b)
        assert {b, d} == {entry.name for entry in cache.entries()}
    assert cache.used_bytes <= room
    assert 3 == read(registry).value("halogen_cache_evictions_total")


async def test_an_artifact_larger_than_the_cache_evicts_nobody(
    tmp_path: Path, store: ArtifactStore, server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """Room that would not be enough is not made."""
    directory, manifest = make_tiny_artifact(tmp_path)
    store.put(directory)
    room = stored.manifest.weights.size_bytes - 1
    async with open_cached(server.url, cache_dir, max_bytes=room) as artifacts:
        await bring_all(artifacts, manifest.id)
        with pytest.raises(Overloaded, match="no room in the artifact cache"):
            await bring_all(artifacts, stored.manifest.id)
        server.asked.clear()
        await bring_all(artifacts, manifest.id)
        assert [] == server.asked


async def test_many_who_want_one_artifact_fetch_it_once(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """Among loaders that share the cache: whoever has a file's turn brings it, the others find it.

    Fault injection: CachedArtifacts.bring takes no turn.
    """
    async with open_cached(server.url, cache_dir) as one, open_cached(server.url, cache_dir) as other:
        await asyncio.gather(*(bring_all(each, stored.manifest.id) for each in (one, other, one, other)))
    assert stored.manifest.weights.size_bytes == server.sent_bytes[WEIGHTS]
    assert 1 == len(server.asked_for(TOKENIZER))


async def test_memory_that_would_be_short_is_told_before_a_download(
    server: StoreServer, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """The manifest says how large the weights are: nothing else is fetched, and nobody is evicted for it.

    Fault injection: Loads.load gives Arrivals nothing to foresee.
    """
    weights = stored.manifest.weights
    guard = MemoryGuard(0.85, lambda: [Bound("the control group", weights.size_bytes, 0)])
    async with (
        open_cached(server.url, cache_dir) as artifacts,
        preparing(artifacts, shm, guard) as preparations,
    ):
        with pytest.raises(Overloaded, match=f"needs {weights.size_bytes} ") as refused:
            await prepare(preparations, stored.manifest.id)
    assert "MEMORY_GUARD" == refused.value.reason
    assert {MANIFEST} == {each.name for each in server.asked}


async def test_a_cache_over_its_bound_is_cut_down_at_the_start(
    tmp_path: Path, store: ArtifactStore, server: StoreServer, cache_dir: Path
) -> None:
    """A bound that was lowered holds at once, not at the next download; what is pinned stays.

    Fault injection: ArtifactCache.sweep trims nothing.
    """
    made = [make_tiny_artifact(tmp_path, seed=seed) for seed in range(3)]
    for directory, _ in made:
        store.put(directory)
    a, b, c = (manifest.id for _, manifest in made)
    cache = CacheDirectory.of(cache_dir)
    async with open_cached(server.url, cache_dir) as artifacts:
        for each in (a, b, c):
            await bring_all(artifacts, each)
    cache.pin(a)
    async with open_cached(server.url, cache_dir, max_bytes=cache.used_bytes - 1):
        assert {a, c} == {entry.name for entry in cache.entries()}


def preparing(artifacts: Artifacts, shm: Path, guard: MemoryGuard = UNGUARDED) -> Preparations:
    place = DirectoryPlace(PlaceKind.TMPFS, shm / "weights")
    metrics = LoaderMetrics(CollectorRegistry())
    return Preparations(
        artifacts, [place], reading=Reading(threads=1), keep_s=60, metrics=metrics, guard=guard
    )


async def prepare(preparations: Preparations, artifact_id: ArtifactId) -> Prepared:
    *_, last = [step async for step in preparations.prepare(artifact_id)]
    assert isinstance(last, Prepared)
    return last
