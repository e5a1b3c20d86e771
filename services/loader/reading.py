"""How this loader reads weight files: what it was told, and how the last one went."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from services.common.checkpoint.header import Header
from services.loader.block_reader import BlockReader
from services.loader.pace import FULL_SPEED, Pace
from services.loader.weight_file import AS_ASKED, DIRECT_REMEDY, ReadMode

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The choices that are the same for all files.

    Attributes:
        threads: How many 4 MiB blocks are read at a time.
        asked: The one mode that is wanted; None for the best that works of direct and buffered.
        lazy_share: With MMAP, the part of a file, from its end, that engines leave on the disk until it is used.
        pace: How fast.
    """

    threads: int
    asked: ReadMode | None = None
    lazy_share: float = 1
    pace: Pace = FULL_SPEED

    def reader(self, path: Path, header: Header) -> BlockReader:
        return BlockReader(path, header, self.threads, asked=self.asked, pace=self.pace)


class HowRead(NamedTuple):
    """How one file was read.

    Attributes:
        refusal: Why not directly; empty if it was.
    """

    mode: ReadMode
    refusal: str

    @classmethod
    def by(cls, reader: BlockReader) -> HowRead:
        return cls(reader.mode, reader.refusal)


MAPPED: Final = HowRead(ReadMode.MMAP, AS_ASKED)


class ReadReport:
    """How weights were last read.

    Attributes:
        mode: None before the first.
        text: The same for people, with the reason and the remedy where it could be better.
    """

    def __init__(self) -> None:
        self.mode: ReadMode | None = None
        self.text = "to be probed at the first load"

    def tell(self, how: HowRead, manners: str) -> None:
        """A file was read so, holding back as `manners` says."""
        if how.refusal and how.refusal != AS_ASKED and how.mode is not self.mode:
            log.warning("reads_not_direct", reason=how.refusal, remedy=DIRECT_REMEDY)
        self.mode = how.mode
        self.text = "; ".join(filter(None, (_describe(how), manners)))


def _describe(how: HowRead) -> str:
    if not how.refusal:
        return how.mode.value
    if how.refusal == AS_ASKED:
        return f"{how.mode}, as asked; auto reads directly where it can"
    return f"{how.mode}, no direct reads ({how.refusal}: {DIRECT_REMEDY})"
