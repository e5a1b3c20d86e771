"""Reading artifacts' files from loaders, of which some may be away."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from services.common.errors import NotFound, Unavailable
from services.common.ids import ArtifactId, InstanceId, ProcessId
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import LoaderRecord
from services.common.registry.view import View
from services.common.rpc.client import ChannelPool
from services.gateway.loader_client import LoaderFiles
from services.gateway.loaders import Loaders

if TYPE_CHECKING:
    from tests.unit.gateway.wire.conftest import Gateway

ARTIFACT = ArtifactId("a" * 64)
NOBODY = "127.0.0.1:1"


@contextlib.asynccontextmanager
async def registered(*addresses: str) -> AsyncIterator[Loaders]:
    """Loaders at those addresses, named in that order."""
    store = MemoryStore()
    for number, address in enumerate(addresses):
        name = ProcessId(f"loader-{number}")
        record = LoaderRecord(
            id=name, instance_id=InstanceId(f"{name}-1"), address=address, host="h", start_time="t"
        )
        await store.put(keys.loader(name), record.encode())
    async with View(store, keys.LOADERS, LoaderRecord) as view:
        await view.synced()
        yield Loaders(view)


async def test_the_next_loader_is_asked(gateway: Gateway) -> None:
    """One that does not answer is passed over, and then asked last."""
    async with ChannelPool() as channels, registered(NOBODY, gateway.peers.address) as loaders:
        assert gateway.peers.files == await LoaderFiles(channels, loaders).read(ARTIFACT)
        assert (gateway.peers.address, NOBODY) == loaders.addresses


async def test_optional_files_may_be_missing(gateway: Gateway) -> None:
    """Only what an artifact must have is asked of it."""
    del gateway.peers.files["generation_config.json"]
    async with ChannelPool() as channels, registered(gateway.peers.address) as loaders:
        read = await LoaderFiles(channels, loaders).read(ARTIFACT)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} == set(read)


async def test_what_the_last_loader_said_is_raised(gateway: Gateway) -> None:
    """Whether to try again is for the catalog to decide."""
    del gateway.peers.files["config.json"]
    async with ChannelPool() as channels:
        async with registered(NOBODY, gateway.peers.address) as loaders:
            with pytest.raises(NotFound):
                await LoaderFiles(channels, loaders).read(ARTIFACT)
        for addresses in ([NOBODY], []):
            async with registered(*addresses) as loaders:
                with pytest.raises(Unavailable):
                    await LoaderFiles(channels, loaders).read(ARTIFACT)


async def test_an_artifact_is_described_by_its_id(gateway: Gateway) -> None:
    """By whichever loader answers first; that nobody has signed it is no failure."""
    gateway.peers.files["manifest.json"] = b"{}"
    async with ChannelPool() as channels, registered(NOBODY, gateway.peers.address) as loaders:
        files = LoaderFiles(channels, loaders)
        assert (b"{}", b"") == await files.describe(ARTIFACT)
        gateway.peers.files["manifest.sig"] = b"signed"
        assert (b"{}", b"signed") == await files.describe(ARTIFACT)
