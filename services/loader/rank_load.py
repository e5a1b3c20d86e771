"""One weight file from the store into the files of its ranks on this host: every block read once, and verified."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.digest import block_digest, split_blocks
from services.common.checkpoint.header import Header
from services.common.checkpoint.rank_file import RankFile, blocks_of
from services.loader.place import Holding
from services.loader.ranks_sink import RanksSink, RankTarget
from services.loader.reading import HowRead, Reading
from services.loader.reservation import Reservation


class RankMade(NamedTuple):
    """A rank's finished file."""

    header: Header
    holding: Holding
    huge_pages: bool


class RankLoad(NamedTuple):
    """The file of `stored` that `header`, verified already, describes, and by rank what is made of it and where."""

    stored: StoredArtifact
    header: Header
    files: Mapping[int, RankFile]
    reservations: Mapping[int, Reservation]

    def run(
        self, reading: Reading, progress: Callable[[int], None], stop: threading.Event
    ) -> tuple[dict[int, RankMade], HowRead]:
        """Fills the reservations and publishes them; discards all after any failure.

        Raises:
            CorruptData: A block does not match its digest.
            Cancelled: `stop` was set.
        """
        with contextlib.ExitStack() as discards:
            for reservation in self.reservations.values():
                discards.callback(reservation.discard)
            headers, how = self._fill(reading, progress, stop)
            discards.pop_all()
        return self._publish(headers), how

    def _fill(
        self, reading: Reading, progress: Callable[[int], None], stop: threading.Event
    ) -> tuple[dict[int, Header], HowRead]:
        with contextlib.ExitStack() as scope:
            targets = {
                rank: RankTarget(file, scope.enter_context(self.reservations[rank].mapped()))
                for rank, file in self.files.items()
            }
            reader = reading.reader(self.stored.path(self.stored.manifest.weights), self.header)
            progress(self.header.data_offset)
            needed = blocks_of(self.files.values(), self.header)
            reader.read_into(RanksSink(tuple(targets.values())), progress, stop, only=needed)
            with ThreadPoolExecutor(reading.threads, "halogen-digest") as pool:
                headers = {rank: _finish(target, pool) for rank, target in targets.items()}
            return headers, HowRead.by(reader)

    def _publish(self, headers: Mapping[int, Header]) -> dict[int, RankMade]:
        """Names the files; where one cannot have its name, the sound ones before it are left for whoever comes."""
        unnamed, made = dict(self.reservations), dict[int, RankMade]()
        with contextlib.ExitStack() as undo:
            undo.callback(_discard, unnamed)
            for rank, header in headers.items():
                huge_pages = unnamed[rank].huge_pages
                holding = unnamed.pop(rank).publish()
                undo.callback(holding.let_go)
                made[rank] = RankMade(header, holding, huge_pages)
            undo.pop_all()
        return made


def _discard(reservations: Mapping[int, Reservation]) -> None:
    for reservation in reservations.values():
        reservation.discard()


def _finish(target: RankTarget, pool: ThreadPoolExecutor) -> Header:
    """Writes the header, with the digests of the data as they now are."""
    header = target.file.header
    digest = functools.partial(_digest, target.memory, header.data_offset)
    header = header.with_digests(tuple(pool.map(digest, split_blocks(header.data_bytes))))
    target.memory[: header.data_offset] = header.encode()
    return header


def _digest(memory: memoryview, data_offset: int, block: tuple[int, int]) -> bytes:
    begin, end = block
    with memory[data_offset + begin : data_offset + end] as data:
        return block_digest(data)
