"""The order in which places are tried, and the sweep of what dead loaders left in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from services.common.checkpoint.owned_directory import sweep
from services.loader.directory_place import DirectoryPlace
from services.loader.memfd_place import MemfdPlace
from services.loader.place import DIRECTORY_PREFIX, Place, PlaceKind

DEV_SHM: Final = Path("/dev/shm")  # noqa: S108  # shared memory, in a directory of our own

HUGE_PAGE_REMEDIES: Final = {
    PlaceKind.TMPFS: "mount the tmpfs of --weights-dir with huge=always",
    PlaceKind.DEV_SHM: "give --weights-dir a tmpfs mounted with huge=always",
    PlaceKind.MEMFD: "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    PlaceKind.FILE: "give --weights-dir a tmpfs mounted with huge=always",
}

log = structlog.get_logger()


def choose_places(only: PlaceKind | None, weights_dir: Path | None, cache_dir: Path) -> tuple[Place, ...]:
    """The places to try, best first.

    Args:
        only: The one place that the operator wants, or None for all.
        weights_dir: A tmpfs, if there is one.
        cache_dir: Where ordinary files may go.
    """
    places: list[Place] = []
    if weights_dir is not None:
        places.append(DirectoryPlace(PlaceKind.TMPFS, weights_dir))
    places.append(DirectoryPlace(PlaceKind.DEV_SHM, DEV_SHM))
    places.append(MemfdPlace())
    places.append(DirectoryPlace(PlaceKind.FILE, cache_dir))
    return tuple(place for place in places if only in (None, place.kind))


def sweep_places(places: Sequence[Place]) -> None:
    """Removes the directories of loaders that were killed; memfds went with them."""
    for place in places:
        if isinstance(place, DirectoryPlace):
            for path in sweep(place.parent, DIRECTORY_PREFIX):
                log.info("leftover_swept", place=place.kind, directory=path.name)
