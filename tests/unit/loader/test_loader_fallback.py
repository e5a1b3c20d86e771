"""What the store has not may come from a registry of models, and nobody waits for that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.errors import CorruptData, NotFound
from services.common.ids import ArtifactId
from services.loader.artifacts import Artifacts
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.config import LoaderConfig
from services.loader.fallback_artifacts import FallbackArtifacts
from services.loader.fallback_fetches import MAX_WAITING, FallbackFetches
from services.loader.supply import supply
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.loader.cached import bring_all, content_of, open_cached
from tests.unit.loader.store_server import StoreServer, store_server
from tests.unit.scheduler.registry_server import black_hole

WEIGHTS, MANIFEST = "model.halogen", "manifest.json"
HOUR_S = 3600.0


class Loading(NamedTuple):
    """A loader's artifacts, with a registry behind its store."""

    artifacts: FallbackArtifacts
    fetches: FallbackFetches

    async def settled(self) -> None:
        """Returns when the registry is asked for nothing more."""
        await self.fetches._waiting.join()

    async def refused(self, artifact_id: ArtifactId) -> None:
        """It is not there, and it is said that the registry is asked."""
        with pytest.raises(NotFound, match="the registry is asked for it"):
            await bring_all(self.artifacts, artifact_id)


@contextlib.asynccontextmanager
async def loading(
    url: str,
    folder: Path,
    *,
    store: Artifacts | None = None,
    limit_s: float = HOUR_S,
    pause_s: float = HOUR_S,
) -> AsyncIterator[Loading]:
    """An empty directory for a store, unless another is given."""
    own = folder / "own"
    own.mkdir(exist_ok=True)
    async with (
        open_cached(url, folder / "cache") as registry,
        FallbackFetches(registry, limit_s, pause_s) as fetches,
    ):
        first = store or ArtifactsInPlace(ArtifactStore(own))
        yield Loading(FallbackArtifacts(first, registry, fetches), fetches)


async def test_what_the_store_has_not_comes_for_whoever_asks_again(
    server: StoreServer, stored: StoredArtifact, tmp_path: Path
) -> None:
    """Refused at once, fetched once, and there from then on: also for a loader whose registry is away.

    Fault injection: turns red when `FallbackArtifacts.opened` awaits the fetch, or `opened_here` asks the source.
    """
    server.gates[WEIGHTS] = asyncio.Event()
    async with loading(server.url, tmp_path) as work:
        for _ in range(3):
            await work.refused(stored.manifest.id)
        await server.reached[WEIGHTS].wait()
        await work.refused(stored.manifest.id)
        server.gates[WEIGHTS].set()
        await work.settled()
        assert content_of(stored) == await bring_all(work.artifacts, stored.manifest.id)
    assert 1 == len(server.asked_for(MANIFEST))
    async with loading("http://127.0.0.1:9/", tmp_path) as work:
        assert content_of(stored) == await bring_all(work.artifacts, stored.manifest.id)


async def test_what_the_store_has_is_never_asked_of_the_registry(
    stored: StoredArtifact, store: ArtifactStore, tmp_path: Path
) -> None:
    """And a fetch that hangs keeps nobody from it."""
    async with (
        black_hole() as hole,
        loading(hole.url, tmp_path, store=ArtifactsInPlace(store)) as work,
    ):
        assert work.artifacts.is_reachable
        assert content_of(stored) == await bring_all(work.artifacts, stored.manifest.id)
        assert not work.fetches._asked
        await work.refused(ArtifactId("0" * 64))
        await hole.reached.wait()
        await work.refused(ArtifactId("1" * 64))
        assert content_of(stored) == await bring_all(work.artifacts, stored.manifest.id)
        assert 1 == hole.connections


async def test_what_does_not_come_is_left_alone_for_a_while(server: StoreServer, tmp_path: Path) -> None:
    """Asked for again and again it is tried once; after the pause once more. Turns red when: `_failed` notes no pause."""
    absent = ArtifactId("0" * 64)
    with capture_logs() as logs:
        async with loading(server.url, tmp_path) as work:
            for _ in range(3):
                await work.refused(absent)
                await work.settled()
            assert 1 == len(server.asked_for(MANIFEST))
            work.fetches._not_before_s.clear()
            await work.refused(absent)
            await work.settled()
    assert 2 == len(server.asked_for(MANIFEST))
    assert ["NOT_IN_STORE"] * 2 == [each["reason"] for each in logs if each["event"] == "fallback_failed"]


async def test_a_registry_that_hangs_is_given_up(tmp_path: Path) -> None:
    """After its time; those that wait behind it get their turn, and more than a few may not wait.

    Fault injection: turns red when `_try` sets no timeout.
    """
    with capture_logs() as logs:
        async with black_hole() as hole, loading(hole.url, tmp_path, limit_s=0.02) as work:
            for number in range(MAX_WAITING + 5):
                work.fetches.ask(ArtifactId(f"{number:064}"))
            await work.settled()
    failed = [each for each in logs if each["event"] == "fallback_failed"]
    assert [f"{number:064}" for number in range(MAX_WAITING)] == [each["artifact_id"] for each in failed]
    assert {"FALLBACK_LIMIT"} == {each["reason"] for each in failed}


async def test_wrong_bytes_of_a_registry_are_never_there(
    server: StoreServer, stored: StoredArtifact, tmp_path: Path
) -> None:
    """Every block is verified on its way in."""

    def spoil(name: str, content: bytearray) -> None:
        if name == WEIGHTS:
            content[-1] ^= 1

    server.spoil = spoil
    async with loading(server.url, tmp_path) as work:
        await work.refused(stored.manifest.id)
        await work.settled()
        await work.refused(stored.manifest.id)


async def test_what_the_disk_spoils_is_asked_for_anew(
    server: StoreServer, stored: StoredArtifact, tmp_path: Path
) -> None:
    """Thrown away when it is found, and good when it comes again."""
    fault = CorruptData("block 0 does not match its digest", metadata={"file": WEIGHTS})
    async with loading(server.url, tmp_path) as work:
        assert not await work.artifacts.mend(stored.manifest.id, fault)
        await work.refused(stored.manifest.id)
        await work.settled()
        assert await work.artifacts.mend(stored.manifest.id, fault)
        await work.refused(stored.manifest.id)
        await work.settled()
        assert content_of(stored) == await bring_all(work.artifacts, stored.manifest.id)


async def test_a_store_over_http_and_a_registry_share_the_cache(
    server: StoreServer, stored: StoredArtifact, tmp_path: Path
) -> None:
    """Half an artifact that the registry gave is gone on with, not taken for one that the store has.

    Fault injection: turns red when `FallbackArtifacts.bring` asks nobody.
    """
    (tmp_path / "empty").mkdir()
    server.statuses[WEIGHTS] = [403]
    async with (
        store_server(tmp_path / "empty") as empty,
        open_cached(empty.url, tmp_path / "cache") as first,
        loading(server.url, tmp_path, store=first, pause_s=0) as work,
    ):
        await work.refused(stored.manifest.id)
        await work.settled()
        await work.refused(stored.manifest.id)
        await work.settled()
        assert content_of(stored) == await bring_all(work.artifacts, stored.manifest.id)


@pytest.mark.parametrize("is_enabled", [False, True])
async def test_the_registry_is_asked_only_where_that_is_wanted(tmp_path: Path, is_enabled: bool) -> None:
    """Its artifacts lie below artifacts/; without the setting nothing is asked, and no cache is made."""
    (tmp_path / "own").mkdir()
    (tmp_path / "registry" / "artifacts").mkdir(parents=True)
    artifact, manifest = make_tiny_artifact(tmp_path, seed=1)
    ArtifactStore(tmp_path / "registry" / "artifacts").put(artifact)
    async with store_server(tmp_path / "registry") as server:
        config = LoaderConfig(
            store=str(tmp_path / "own"),
            cache_dir=tmp_path / "cache",
            registry={"url": server.url, "fallback_enabled": is_enabled},
        )
        async with supply(config, CollectorRegistry()) as (artifacts, _):
            with pytest.raises(NotFound):
                await bring_all(artifacts, manifest.id)
            if isinstance(artifacts, FallbackArtifacts):
                await artifacts._fetches._waiting.join()
                assert manifest.total_bytes == sum(
                    map(len, (await bring_all(artifacts, manifest.id)).values())
                )
    assert (is_enabled, is_enabled) == (bool(server.asked), (tmp_path / "cache").exists())


@pytest.mark.parametrize("missing", ["token", "cache"])
async def test_a_fallback_that_cannot_be_keeps_no_loader_from_its_store(
    store: ArtifactStore, stored: StoredArtifact, tmp_path: Path, missing: str
) -> None:
    """A secret is not there, or the cache cannot be made: what the store has is served all the same.

    Fault injection: turns red when `_with_fallback` lets the failure pass.
    """
    (tmp_path / "file").touch()
    registry = {"url": "http://127.0.0.1:9", "fallback_enabled": True}
    if missing == "token":
        registry["token_file"] = tmp_path / "absent"
    cache = tmp_path / "file" / "cache" if missing == "cache" else tmp_path / "cache"
    config = LoaderConfig(store=str(store.root), cache_dir=cache, registry=registry)
    with capture_logs() as logs:
        async with supply(config, CollectorRegistry()) as (artifacts, _):
            assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)
    reason = {"token": "REGISTRY_TOKEN_UNREADABLE", "cache": "CACHE_UNUSABLE"}[missing]
    assert [reason] == [each["reason"] for each in logs if each["event"] == "fallback_unusable"]


def test_a_fallback_needs_to_know_where(tmp_path: Path) -> None:
    """And is not for engines that map the store's own files."""
    with pytest.raises(ValueError, match="fallback_enabled needs url"):
        LoaderConfig(store=str(tmp_path), registry={"fallback_enabled": True})
    registry = {"url": "http://registry", "fallback_enabled": True}
    with pytest.raises(ValueError, match="may be evicted"):
        LoaderConfig(store=str(tmp_path), read_mode="mmap", registry=registry)
