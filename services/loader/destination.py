"""Where an artifact is to be made: free, or holding the very same one, so that making it twice is no error."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from services.common.checkpoint.artifact_directory import check_directory
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.durable import publish_directory
from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest
from services.common.checkpoint.owned_directory import owned_directory, sweep
from services.common.errors import AlreadyExists, HalogenError, InvalidRequest, Overloaded


class Destination(NamedTuple):
    """A directory that appears whole, by renaming, or not at all."""

    path: Path

    @classmethod
    def check(cls, path: Path) -> Self:
        """Refuses early what could never be made or replaced.

        Raises:
            InvalidRequest: It would lie in a file.
            AlreadyExists: Something is there that is no artifact.
        """
        path = path.absolute()
        nearest = next(folder for folder in path.parents if folder.exists())
        if not nearest.is_dir():
            raise InvalidRequest(f"{nearest.name} is a file, so nothing can lie in it; give another OUT")
        is_taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        if is_taken and not (path / MANIFEST_NAME).is_file():
            raise AlreadyExists(
                f"{path.name} exists and is no artifact; give another OUT", reason="DESTINATION_EXISTS"
            )
        return cls(path)

    @contextlib.contextmanager
    def workshop(self, needed_bytes: int) -> Iterator[Path]:
        """A directory beside it for the scope; what killed makers left there is removed first.

        Args:
            needed_bytes: What will be written; it need not be exact.

        Raises:
            Overloaded: The disk has no room for so much.
            InvalidRequest: No directory can be made there.
        """
        prefix = f".{self.path.name}.converting-"
        with contextlib.ExitStack() as scope:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                sweep(self.path.parent, prefix)
                self._check_room(needed_bytes)
                work = scope.enter_context(owned_directory(self.path.parent, prefix))
            except OSError as failure:
                raise InvalidRequest(
                    f"{self.path.name} cannot be made in {self.path.parent.name} ({failure.strerror}); give another OUT",
                    reason="DESTINATION_UNUSABLE",
                ) from failure
            yield work

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
