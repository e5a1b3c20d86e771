"""Weights in anonymous memory, handed over as /proc/PID/fd/N to processes of the same user."""

from __future__ import annotations

import fcntl
import os
from typing import Final

from services.loader.place import Holding, PlaceKind
from services.loader.shared_directory import SharedDirectory

_F_SEAL_FUTURE_WRITE: Final = 0x10  # linux/fcntl.h; Python 3.11 does not name it
_SEALS: Final = _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class MemfdSlot:
    """An anonymous file of full size; its pages come as they are touched."""

    has_room = False

    kind = PlaceKind.MEMFD

    def __init__(self, name: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size_bytes)
        except BaseException:
            self.discard()
            raise

    def publish(self) -> Holding:
        """Seals it: from here on nobody, this process included, can write or resize it."""
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
        os.fchmod(self.descriptor, 0o400)
        return Holding(
            kind=self.kind,
            mapped_path=f"/proc/{os.getpid()}/fd/{self.descriptor}",
            size_bytes=self.size_bytes,
            let_go=_keep,
            release=self.discard,
        )

    def discard(self) -> None:
        os.close(self.descriptor)


class MemfdPlace:
    """Anonymous memory; goes with the last process that holds or maps it."""

    kind = PlaceKind.MEMFD

    def reserve(self, name: str, size_bytes: int) -> MemfdSlot:
        """Room for a file, as `Place.reserve` says."""
        return MemfdSlot(name, size_bytes)

    def shared(self, *, make: bool) -> SharedDirectory | None:  # noqa: ARG002  # the place's signature
        """Nothing: a memfd has no name that another loader could find it by."""
        return None

    def close(self) -> None:
        """Nothing outlives the descriptors, and those belong to the holdings."""


def _keep() -> None:
    """Letting go of anonymous memory would be its end: it stays until room is short."""
