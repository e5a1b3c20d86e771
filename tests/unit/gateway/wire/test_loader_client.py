"""Reading artifacts' files from loaders, of which some may be away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.common.errors import NotFound, Unavailable
from services.common.ids import ArtifactId
from services.common.rpc.client import ChannelPool
from services.gateway.loader_client import LoaderFiles

if TYPE_CHECKING:
    from tests.unit.gateway.wire.conftest import Gateway

ARTIFACT = ArtifactId("a" * 64)
NOBODY = "127.0.0.1:1"


async def test_the_next_loader_is_asked(gateway: Gateway) -> None:
    """One that does not answer is passed over, and then asked last."""
    async with ChannelPool() as channels:
        files = LoaderFiles(channels, [NOBODY, gateway.peers.address])
        assert gateway.peers.files == await files.read(ARTIFACT)
        assert [gateway.peers.address, NOBODY] == files._loaders


async def test_optional_files_may_be_missing(gateway: Gateway) -> None:
    """Only what an artifact must have is asked of it."""
    del gateway.peers.files["generation_config.json"]
    async with ChannelPool() as channels:
        read = await LoaderFiles(channels, [gateway.peers.address]).read(ARTIFACT)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} == set(read)


async def test_what_the_last_loader_said_is_raised(gateway: Gateway) -> None:
    """Whether to try again is for the catalog to decide."""
    del gateway.peers.files["config.json"]
    async with ChannelPool() as channels:
        with pytest.raises(NotFound):
            await LoaderFiles(channels, [NOBODY, gateway.peers.address]).read(ARTIFACT)
        with pytest.raises(Unavailable):
            await LoaderFiles(channels, [NOBODY]).read(ARTIFACT)
