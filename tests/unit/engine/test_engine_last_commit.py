"""What an engine remembers for its next start."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from services.common.background import background
from services.common.ids import ArtifactId, ProcessId, Revision
from services.common.pulse import Pulse
from services.common.registry.records import Serving
from services.engine.last_commit import LastCommitFile
from services.engine.recovery import NOTHING, Recovery

A, B = (Serving(revision=Revision(n), artifact_id=ArtifactId(str(n) * 64)) for n in (1, 2))
M, N = "serving/m/stable", "serving/n/stable"


def file_in(folder: Path, environment: str = "halogen/") -> LastCommitFile:
    return LastCommitFile.of(folder / "engine", ProcessId("rack/1"), environment)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """The last of several, and no unfinished file beside it; before any there is nothing."""
    file = file_in(tmp_path)
    assert {} == file.read()
    file.write({M: A})
    file.write({M: B, N: A})
    assert {M: B, N: A} == file.read()
    assert ["rack%2F1.json"] == [each.name for each in file.path.parent.iterdir()]


@pytest.mark.parametrize("content", [b"", b"{", b'{"environment": 1}', b"\xff"])
def test_what_is_damaged_is_nothing(tmp_path: Path, content: bytes) -> None:
    """The engine then waits for the registry, as others do."""
    file = file_in(tmp_path)
    file.write({M: A})
    file.path.write_bytes(content)
    assert {} == file.read()


def test_another_environment_is_not_served(tmp_path: Path) -> None:
    """Staging's revisions are none of production's.

    Fault injection: turns red when the environment is not compared.
    """
    file_in(tmp_path, "staging/").write({M: A})
    assert {} == file_in(tmp_path, "production/").read()


async def test_what_is_not_yet_served_again_is_not_forgotten(tmp_path: Path) -> None:
    """An engine that dies while it loads the second of two models starts with both again.

    Fault injection: turns red when only what is applied is written.
    """
    file, news = file_in(tmp_path), Pulse()
    file.write({M: A, N: A})
    recovery = Recovery(file)
    await recovery.read()
    async with background(recovery.follow(news, lambda: {M: B})):
        news.beat()
        while recovery.remembered == {M: A, N: A}:
            await news_passes()
    assert {M: B, N: A} == file.read()


async def news_passes() -> None:
    """Others run."""
    await asyncio.sleep(0)


async def test_without_a_file_nothing_is_remembered() -> None:
    """As is usual."""
    recovery = Recovery(None)
    await recovery.read()
    assert NOTHING == recovery.remembered
