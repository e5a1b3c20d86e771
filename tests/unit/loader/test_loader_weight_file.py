"""How a weight file is read: probed, told, and never other than was asked for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from services.common.errors import PreconditionFailed
from services.loader.reading import MAPPED, HowRead, ReadReport
from services.loader.weight_file import DIRECT_REMEDY, Opener, ReadMode, WeightFile, open_direct
from tests.unit.loader.disk import open_descriptors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(4096) + b"halogen!" * 512)
    return path


def not_there(_: Path) -> int:
    raise OSError(errno.EINVAL, "Invalid argument")


def write_only(path: Path) -> int:
    """Opens, and refuses the first read."""
    return os.open(path, os.O_WRONLY)


@pytest.mark.parametrize(
    ("asked", "opener", "mode", "refusal"),
    [
        (None, open_direct, ReadMode.DIRECT, ""),
        (None, not_there, ReadMode.BUFFERED, "Invalid argument"),
        (None, write_only, ReadMode.BUFFERED, "Bad file descriptor"),
        (ReadMode.DIRECT, open_direct, ReadMode.DIRECT, ""),
        (ReadMode.BUFFERED, open_direct, ReadMode.BUFFERED, "as asked"),
    ],
)
def test_the_best_way_that_works_is_taken(
    path: Path, asked: ReadMode | None, opener: Opener, mode: ReadMode, refusal: str
) -> None:
    """Direct reads by a read that is tried, else buffered ones with the reason; nothing stays open."""
    before = open_descriptors()
    with WeightFile.open(path, 4096, asked, opener) as file:
        assert (mode, refusal) == (file.mode, file.refusal)
        block = bytearray(4096)
        assert 4096 == file.read(memoryview(block), 0) or mode is ReadMode.DIRECT
    assert set() == open_descriptors() - before


@pytest.mark.parametrize("opener", [not_there, write_only])
def test_direct_reads_that_are_asked_for_are_not_replaced(path: Path, opener: Opener) -> None:
    """A refusal with the reason and the remedy, and nothing open."""
    before = open_descriptors()
    with (
        pytest.raises(PreconditionFailed, match=r"direct reads of the store are refused: .*--read-mode auto"),
        WeightFile.open(path, 4096, ReadMode.DIRECT, opener),
    ):
        pass
    assert set() == open_descriptors() - before


@pytest.mark.parametrize(
    ("how", "manners", "text"),
    [
        (HowRead(ReadMode.DIRECT, ""), "", "direct"),
        (HowRead(ReadMode.DIRECT, ""), "beside live traffic: x", "direct; beside live traffic: x"),
        (
            HowRead(ReadMode.BUFFERED, "Invalid argument"),
            "",
            f"buffered, no direct reads (Invalid argument: {DIRECT_REMEDY})",
        ),
        (HowRead(ReadMode.BUFFERED, "as asked"), "", "buffered, as asked; auto reads directly where it can"),
        (MAPPED, "", "mmap, as asked; auto reads directly where it can"),
    ],
)
def test_the_report_has_reason_and_remedy(how: HowRead, manners: str, text: str) -> None:
    """For people; the mode is for metrics."""
    report = ReadReport()
    report.tell(how, manners)
    assert (how.mode, text) == (report.mode, report.text)
