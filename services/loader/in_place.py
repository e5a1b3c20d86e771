"""A weight file that stays where it is: verified there, and mapped by engines from its disk, without a copy."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import NamedTuple

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.header import Header
from services.loader.file_stamp import FileStamp
from services.loader.place import Holding, PlaceKind
from services.loader.reading import Reading
from services.loader.sink import ScratchSink
from services.loader.weight_file import ReadMode


class InPlace(NamedTuple):
    """The file of `stored` that `header`, verified already, describes.

    Its bytes are right when they are read here, and it is verified anew once somebody has touched it. What an engine
    has mapped already, it reads as it is: that is the price of having no copy, so that nobody gets this without asking.
    """

    stored: StoredArtifact
    header: Header

    def verify(self, reading: Reading, progress: Callable[[int], None], stop: threading.Event) -> Holding:
        """Reads every block through the page cache, which is where engines then find it.

        Raises:
            CorruptData: A block does not match its digest.
            Cancelled: `stop` was set.
        """
        path = self.stored.path(self.stored.manifest.weights)
        buffered = dataclasses.replace(reading, asked=ReadMode.BUFFERED)
        before = FileStamp.of(path)
        progress(self.header.data_offset)
        buffered.reader(path, self.header).read_into(ScratchSink(), progress, stop)
        return Holding(
            kind=PlaceKind.FILE,
            mapped_path=str(path.resolve()),
            size_bytes=self.header.file_bytes,
            let_go=_leave,
            release=_leave,
            stamp=before,
        )


def _leave() -> None:
    """The file is the store's."""
