"""Derived files on this host's disk: in its cache of artifacts, which is opened when the first is looked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, NamedTuple

import structlog

from services.common.checkpoint.derived_files import HeldDerived
from services.common.checkpoint.header import Header
from services.common.checkpoint.partial_file import PartialFile
from services.common.checkpoint.verified_artifact import decode_header
from services.common.errors import CorruptData, InvalidRequest, PreconditionFailed
from services.loader.adoption import check_layout
from services.loader.artifact_cache import ArtifactCache
from services.loader.turn import turn

log = structlog.get_logger()


class FoundDerived(NamedTuple):
    """A derived file whose header is the one that was expected; its data are yet to be verified."""

    held: HeldDerived
    header: Header

    def release(self) -> None:
        self.held.release()


class DerivedCache:
    """Methods wait for the disk: call them in threads.

    Args:
        opened: The cache; raises PreconditionFailed or OSError where it cannot be used.
    """

    def __init__(self, opened: Callable[[], ArtifactCache]) -> None:
        self._opened = opened

    def turn(self, name: str) -> AbstractAsyncContextManager[None]:
        """Waits for the turn to make that file, among all loaders that share the cache, and holds it for the scope."""
        return turn(self._opened().directory.turn_path(name))

    def find(self, name: str, expected: Header) -> FoundDerived | None:
        """The file of that name, held; None where there is none, or it was another one and is gone now.

        Args:
            name: Of the file.
            expected: The header that it must have, but for its digests.
        """
        held = self._opened().directory.hold_derived(name)
        if held is None:
            return None
        try:
            return FoundDerived(held, _read_header(held, expected))
        except CorruptData as fault:
            held.release()
            self.forget(name, fault)
            return None
        except BaseException:
            held.release()
            raise

    def has(self, name: str) -> bool:
        """Whether a file of that name is there, whatever it is."""
        return self._opened().directory.has_derived(name)

    def reserve(self, name: str, size_bytes: int) -> PartialFile:
        """Room for that file, whose turn the caller has; evicts for it.

        Raises:
            Overloaded: There is none.
            OSError: The disk cannot be written.
        """
        return self._opened().reserve_derived(name, size_bytes)

    def publish(self, partial: PartialFile, name: str) -> None:
        """Gives it its name, once all of it is on the disk."""
        self._opened().directory.publish_derived(partial, name)

    def forget(self, name: str, fault: CorruptData) -> None:
        """Takes its name from one that proved wrong, and logs it."""
        log.warning("derived_file_wrong", name=name, error=fault.message)
        self._opened().directory.forget_derived(name)


def _nowhere() -> ArtifactCache:
    raise PreconditionFailed("this loader has no cache on a disk", reason="CACHE_UNUSABLE")


NO_CACHE: Final = DerivedCache(_nowhere)  # has nothing, makes nothing


def _read_header(held: HeldDerived, expected: Header) -> Header:
    with os.fdopen(os.dup(held.descriptor), "rb") as file:
        file.seek(0)
        try:
            header = decode_header(file)
        except InvalidRequest as fault:
            raise CorruptData(fault.message) from None
        check_layout(header, expected)
        if os.fstat(file.fileno()).st_size != header.file_bytes:
            raise CorruptData("it is not as long as its header says")
    return header
