"""Artifacts published by their ids: they lie on an HTTP server, and are served as any other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli import publish
from services.cli.console import CommandError
from services.cli.control_client import Order
from services.common.checkpoint.artifact_store import ArtifactStore, read_manifest
from services.common.errors import NotFound
from tests.scenarios.cluster import Cluster
from tests.unit.loader.store_server import StoreServer, store_server

ORDER = Order("m", "stable", "", who="test", why="test")
Start = Callable[..., Any]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[StoreServer]:
    (tmp_path / "uploaded").mkdir()
    async with store_server(tmp_path / "uploaded") as running:
        yield running


async def publish_by_id(system: Cluster, given: str, *, reverify: bool = False) -> str:
    published = await publish.publish(system.gateway, ORDER, given, "", reverify=reverify, wait_s=60)
    return published.artifact_id


async def test_an_artifact_is_served_from_an_http_store(
    start: Start, driver: str, server: StoreServer, stories: dict[str, Path]
) -> None:
    """It is uploaded there, published by its id, fetched once, and answers as it does from a directory."""
    system: Cluster = await start(driver, loader={"store": server.url})
    artifact_id = ArtifactStore(server.root).put(stories["stories-v1"])
    assert artifact_id == await publish_by_id(system, artifact_id)
    async with system.client() as client:
        answer = await client.generate("Once upon a time", max_tokens=8, temperature=0).complete()
    assert answer.provenance is not None
    assert artifact_id == answer.provenance.artifact_id
    manifest = read_manifest(server.root / artifact_id)
    assert {file.path: file.size_bytes for file in manifest.files} == {
        name: size for name, size in server.sent_bytes.items() if name != "manifest.json"
    }


async def test_what_the_store_has_not_or_has_wrong_is_not_published(
    start: Start, server: StoreServer, stories: dict[str, Path]
) -> None:
    """NOT_FOUND leaves no record; wrong bytes are REJECTED, and verified anew once they are mended."""
    system: Cluster = await start("in_process", loader={"store": server.url})
    artifact_id = read_manifest(stories["stories-v1"]).id
    with pytest.raises(NotFound, match="upload the artifact's files there"):
        await publish_by_id(system, artifact_id)
    ArtifactStore(server.root).put(stories["stories-v1"])
    right = server.spoil

    def spoil(name: str, content: bytearray) -> None:
        if name == "model.halogen":
            content[-1] ^= 1

    server.spoil = spoil
    with pytest.raises(
        CommandError, match=rf"REJECTED: .* in the store.*halogen publish m {artifact_id} --reverify"
    ):
        await publish_by_id(system, artifact_id)
    server.spoil = right
    with pytest.raises(CommandError, match="REJECTED"):
        await publish_by_id(system, artifact_id)
    assert artifact_id == await publish_by_id(system, artifact_id, reverify=True)


async def test_an_artifact_of_a_directory_is_published_by_its_id_too(
    start: Start, stories: dict[str, Path]
) -> None:
    """Or by its beginning: whoever goes back to what was served before needs no copy of it."""
    system: Cluster = await start("in_process")
    first = (await system.publish("m", stories["stories-v1"])).artifact_id
    await system.publish("m", stories["stories-v2"])
    assert first == await publish_by_id(system, first)
    assert first == await publish_by_id(system, first[:12])
    with pytest.raises(CommandError, match="give its directory or its whole id"):
        await publish_by_id(system, "0" * 8)
