"""Where an artifact is to be made: free, or holding the very same one, so that making it twice is no error."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from services.common.checkpoint.artifact_directory import check_directory
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.durable import publish_directory
from services.common.checkpoint.manifest import MANIFEST_NAME, PATHS, Manifest, Role
from services.common.checkpoint.owned_directory import owned_directory, sweep
from services.common.errors import AlreadyExists, HalogenError, InvalidRequest, Overloaded
from services.loader.mounts import read_mounts

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_REMEDIES: Final[Mapping[int | None, str]] = {
    **dict.fromkeys(_FULL, "make room there, for bytes and for files, or give another OUT"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give an OUT that you may write"),
    errno.ENAMETOOLONG: "give a shorter OUT",
}


class Destination(NamedTuple):
    """A directory that appears whole, by renaming, or not at all."""

    path: Path

    @classmethod
    def check(cls, path: Path) -> Self:
        """Refuses early what could never be made or replaced.

        Raises:
            InvalidRequest: It would lie in a file or in an artifact, take a mount's or a link's place, or cannot be
                looked at or written.
            AlreadyExists: Something is there that is no artifact.
        """
        place = cls(path.absolute())
        try:
            place._check_folders()
            if not (place.path / MANIFEST_NAME).is_file():
                place._check_free()
        except OSError as failure:
            raise place._unusable(failure) from failure
        return place

    def _check_folders(self) -> None:
        nearest = next((folder for folder in self.path.parents if folder.exists()), self.path)
        if not nearest.is_dir():
            raise InvalidRequest(f"{nearest.name} is a file, so nothing can lie in it; give another OUT")
        if not os.access(nearest, os.W_OK):
            raise PermissionError(errno.EACCES, "not writable")
        for folder in Path(os.path.realpath(self.path)).parents:
            if all((folder / name).is_file() for name in (MANIFEST_NAME, PATHS[Role.WEIGHTS])):
                raise InvalidRequest(
                    f"{self.path.name} would lie in the artifact {folder.name}, which holds nothing else; give another OUT"
                )

    def _check_free(self) -> None:
        mounts = {mount.point for mount in read_mounts()}
        if Path(os.path.realpath(self.path)) in mounts or self.path.is_symlink():
            raise InvalidRequest(
                f"{self.path} is a mount point or a link, whose place an artifact cannot take; give a directory inside it",
                reason="DESTINATION_UNUSABLE",
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise AlreadyExists(
                f"{self.path.name} exists and is no artifact; give another OUT", reason="DESTINATION_EXISTS"
            )

    @contextlib.contextmanager
    def workshop(self, needed_bytes: int) -> Iterator[Path]:
        """A directory beside it for the scope; what killed makers left there is removed first.

        Args:
            needed_bytes: What will be written; it need not be exact.

        Raises:
            Overloaded: The disk has no room for so much.
            InvalidRequest: No directory can be made there, or no file in it.
        """
        prefix = f".{self.path.name}.converting-"
        with contextlib.ExitStack() as scope:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                sweep(self.path.parent, prefix)
                self._check_room(needed_bytes)
                work = scope.enter_context(owned_directory(self.path.parent, prefix))
            except OSError as failure:
                raise self._unusable(failure) from failure
            try:
                yield work
            except OSError as failure:
                if str(failure.filename).startswith(str(work)):
                    raise self._unusable(failure) from failure
                raise

    def _unusable(self, failure: OSError) -> HalogenError:
        message = (
            f"{self.path.name} cannot be made in {self.path.parent.name} ({failure.strerror}); "
            f"{_REMEDIES.get(failure.errno, 'give another OUT')}"
        )
        if failure.errno in _FULL:
            return Overloaded(message, reason="DISK_FULL")
        return InvalidRequest(message, reason="DESTINATION_UNUSABLE")

    def _check_room(self, needed_bytes: int) -> None:
        disk = shutil.disk_usage(self.path.parent)
        if disk.free < needed_bytes and disk.total:  # 0 of what is no disk, and of some that do not say
            raise Overloaded(
                f"{self.path.name} needs {needed_bytes} bytes and its disk has {disk.free} left; remove "
                "something there, or give another OUT",
                reason="DISK_FULL",
            )

    def take(self, work: Path, manifest: Manifest) -> None:
        """Gives a finished artifact its name, unless the same artifact has it by now.

        Raises:
            AlreadyExists: Another artifact has it.
        """
        if not self._holds(manifest):
            publish_directory(work, self.path)

    def _holds(self, manifest: Manifest) -> bool:
        if not (self.path / MANIFEST_NAME).is_file():
            return False
        try:
            present: str = read_manifest(self.path).id
            check_directory(self.path, manifest)
        except HalogenError as fault:
            present = fault.message
        if present != manifest.id:
            raise AlreadyExists(
                f"{self.path.name} holds another artifact ({present}); give another OUT, or remove it",
                reason="DESTINATION_EXISTS",
            )
        return True
