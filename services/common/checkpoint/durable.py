"""Files and directories that are whole after a crash, or absent."""

from __future__ import annotations

import os
from pathlib import Path

from services.common.errors import AlreadyExists


def sync(path: Path) -> None:
    """Forces a file, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_directory(source: Path, destination: Path) -> None:
    """Gives a finished directory its name: all of it is on disk before the name is, and the name after.

    Args:
        source: A directory whose files are synced already.
        destination: Its name to be, on the same file system.

    Raises:
        AlreadyExists: Something has the name.
    """
    source.chmod(0o755)
    sync(source)
    try:
        source.rename(destination)
    except OSError as failure:
        if destination.exists():
            raise AlreadyExists(
                f"{destination.name} exists already", reason="DESTINATION_EXISTS"
            ) from failure
        raise
    sync(destination.parent)
