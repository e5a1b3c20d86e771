"""The order in which places are tried, and the sweep of what dead loaders of other stores left in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.owned_directory import sweep
from services.loader.directory_place import DirectoryPlace
from services.loader.memfd_place import MemfdPlace
from services.loader.place import Place, PlaceKind

DEV_SHM: Final = Path("/dev/shm")  # noqa: S108  # shared memory, in a directory of our own

HUGE_PAGE_REMEDIES: Final = {
    PlaceKind.TMPFS: "mount the tmpfs of --weights-dir with huge=always",
    PlaceKind.DEV_SHM: "give --weights-dir a tmpfs mounted with huge=always",
    PlaceKind.MEMFD: "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    PlaceKind.FILE: "give --weights-dir a tmpfs mounted with huge=always",
}

log = structlog.get_logger()


def folder_name(store: Path | str) -> str:
    """Of the directory that this user's loaders of a store share in every place.

    Loaders of another store have another: what one store holds damaged, another's loaders may have whole.

    Args:
        store: Its directory, or its URL.
    """
    name = store if isinstance(store, str) else store.resolve()
    return f"{_prefix()}{sha256_hex(os.fsencode(name))[:12]}"


def _prefix() -> str:
    return f"halogen-weights-{os.geteuid()}-"


def choose_places(
    only: PlaceKind | None, weights_dir: Path | None, cache_dir: Path, folder: str
) -> tuple[Place, ...]:
    """The places to try, best first.

    Args:
        only: The one place that the operator wants, or None for all.
        weights_dir: A tmpfs, if there is one.
        cache_dir: Where ordinary files may go.
        folder: Name of the directory to use in each of them.
    """
    places: list[Place] = []
    if weights_dir is not None:
        places.append(DirectoryPlace(PlaceKind.TMPFS, weights_dir / folder))
    places.append(DirectoryPlace(PlaceKind.DEV_SHM, DEV_SHM / folder))
    places.append(MemfdPlace())
    places.append(DirectoryPlace(PlaceKind.FILE, cache_dir / folder))
    return tuple(place for place in places if only in (None, place.kind))


def sweep_abandoned(places: Sequence[Place]) -> None:
    """Frees the memory of this user's loaders of other stores that were killed and never came back.

    What loaders of this store left is theirs to adopt.
    """
    for place in places:
        if isinstance(place, DirectoryPlace) and place.kind.is_memory:
            for path in sweep(place.directory.parent, _prefix(), but=place.directory):
                log.info("leftover_swept", place=place.kind, directory=path.name)
