"""One weight file from a disk into a reservation: header, then every block verified, then immutable."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from services.common.checkpoint.digest import split_blocks
from services.common.checkpoint.header import Header
from services.common.ids import ArtifactId
from services.loader.place import Holding
from services.loader.reading import HowRead, Reading
from services.loader.reservation import Reservation
from services.loader.sink import Sink
from services.loader.weight_file import ReadMode

log = structlog.get_logger(component="checkpoint")


class WeightLoad(NamedTuple):
    """A file that `header`, verified already, describes, and room as large as it.

    Attributes:
        path: Of the file.
        artifact_id: Whose weights they are.
    """

    path: Path
    artifact_id: ArtifactId
    header: Header
    reservation: Reservation

    def run(
        self, reading: Reading, progress: Callable[[int], None], stop: threading.Event
    ) -> tuple[Holding, HowRead]:
        """Fills the reservation and publishes it; discards it after any failure.

        Args:
            reading: How to read.
            progress: Told the length of every part that has been written.
            stop: Ends the work early.

        Raises:
            CorruptData: A block does not match its digest.
            Cancelled: `stop` was set.
        """
        started = time.monotonic()
        reader = reading.reader(self.path, self.header)
        try:
            _write_header(self.header, self.reservation.sink)
            progress(self.header.data_offset)
            with self.reservation.populating(lambda: reading.pace.holds_back):
                reader.read_into(self.reservation.sink, progress, stop)
        except BaseException:
            self.reservation.discard()
            raise
        how = HowRead.by(reader)
        self._log(time.monotonic() - started, how.mode)
        return self.reservation.publish(), how

    def _log(self, seconds: float, mode: ReadMode) -> None:
        log.info(
            "checkpoint_read",
            artifact_id=self.artifact_id,
            size_bytes=self.header.file_bytes,
            seconds=round(seconds, 3),
            gb_per_s=round(self.header.file_bytes / seconds / 1e9, 2),
            mode=mode,
        )


def _write_header(header: Header, sink: Sink) -> None:
    encoded = header.encode()
    for begin, end in split_blocks(len(encoded)):
        with sink.window(begin, end) as window:
            window[:] = encoded[begin:end]
