"""What was read a moment ago is not read again to be verified."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.common.checkpoint.artifact_store import StoredArtifact
from services.loader.block_reader import BlockReader
from services.loader.file_stamp import FileStamp
from services.loader.preparations import Preparations
from services.loader.sink import Sink
from services.loader.verified_lately import VerifiedLately
from tests.unit.loader.test_loader_verify_only import verified

KEEP_S = 30.0


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_file_counts_for_a_while_and_as_long_as_nobody_touches_it(tmp_path: Path) -> None:
    """Fault injection: turns red when `has` asks neither clock nor stamp."""
    path, clock = tmp_path / "weights", Clock()
    path.write_bytes(b"weights")
    lately = VerifiedLately(KEEP_S, clock)
    assert not lately.has(path)
    lately.add(path, FileStamp.of(path))
    clock.now_s = KEEP_S - 1
    assert lately.has(path)
    clock.now_s = KEEP_S
    assert not lately.has(path)
    lately.add(path, FileStamp.of(path))
    path.write_bytes(b"other weights")
    assert not lately.has(path)


async def test_who_asks_at_once_waits_for_one_reading(
    preparations: Preparations, stored: StoredArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hears the end; who asks later has it read anew.

    Fault injection: turns red when `Preparations.check` begins one for everybody.
    """
    reads: list[Path] = []
    read_into = BlockReader.read_into

    def counted(reader: BlockReader, sink: Sink, *more: Any, **options: Any) -> None:
        reads.append(reader.path)
        read_into(reader, sink, *more, **options)

    monkeypatch.setattr(BlockReader, "read_into", counted)
    await asyncio.gather(*(verified(preparations, stored.manifest.id) for _ in range(8)))
    assert 1 == len(reads)
    await verified(preparations, stored.manifest.id)
    assert 2 == len(reads)
