"""Artifacts in a store, and shared memory that must be empty in the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.header import Header
from services.common.checkpoint.verified_artifact import read_header
from services.loader.directory_place import DirectoryPlace
from services.loader.place import PlaceKind
from services.loader.places import DEV_SHM
from services.loader.preparations import Preparations
from tests.tiny_checkpoints import MULTI_BLOCK, make_tiny_artifact
from tests.unit.loader.preparing import open_preparations
from tests.unit.loader.store_server import StoreServer, store_server


@pytest.fixture(scope="session")
def three_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact directory whose weights have three blocks; not to be changed."""
    return make_tiny_artifact(tmp_path_factory.mktemp("three-blocks"), MULTI_BLOCK)[0]


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    (tmp_path / "store").mkdir()
    return ArtifactStore(tmp_path / "store")


@pytest.fixture
def stored(store: ArtifactStore, three_blocks: Path) -> StoredArtifact:
    """The three-block artifact in a store of the test's own, to be damaged at will."""
    artifact = store.open(store.put(three_blocks))
    for path in artifact.directory.iterdir():
        path.chmod(0o644)
    return artifact


@pytest.fixture
def header(stored: StoredArtifact) -> Header:
    """Of its weights."""
    return read_header(stored)


@pytest.fixture
async def server(store: ArtifactStore) -> AsyncIterator[StoreServer]:
    """The store, over HTTP."""
    async with store_server(store.root) as running:
        yield running


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def shm(tmp_path: Path) -> Iterator[Path]:
    """A directory on a tmpfs that must be empty in the end."""
    path = DEV_SHM / f"halogen-test-{os.getpid()}-{tmp_path.name}"
    path.mkdir()
    yield path
    left = list(path.iterdir())
    shutil.rmtree(path)
    assert [] == left, "shared memory is left behind"


@pytest.fixture
async def preparations(store: ArtifactStore, shm: Path) -> AsyncIterator[Preparations]:
    async with open_preparations(store, DirectoryPlace(PlaceKind.TMPFS, shm / "weights")) as opened:
        yield opened
