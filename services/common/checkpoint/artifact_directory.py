"""An artifact's directory, looked at before any of it is read: exactly the manifest's files, all of them plain."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Final

from services.common.checkpoint.manifest import MANIFEST_NAME, Manifest, ManifestFile
from services.common.checkpoint.signatures import SIGNATURES_NAME
from services.common.errors import CorruptData

COMPANIONS: Final = frozenset(
    {MANIFEST_NAME, SIGNATURES_NAME}
)  # files that lie beside those that the manifest names
MAX_ENTRIES: Final = 64  # that are looked at

_NOT_PLAIN: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})  # a link, a socket, no such device


def check_directory(directory: Path, manifest: Manifest, absent: Collection[str] = ()) -> None:
    """Reads no file: looks at names, kinds and sizes.

    Args:
        directory: Of the artifact.
        manifest: Of the same.
        absent: Names of files that may be missing.

    Raises:
        CorruptData: Something is missing, too many, no plain file or of another size than the manifest says.
    """
    found = _entries(directory)
    if unknown := found.keys() - {file.path for file in manifest.files} - COMPANIONS:
        raise _unknown(min(unknown))
    for file in manifest.files:
        if file.path in found:
            check_size(file, found[file.path])
        elif file.path not in absent:
            raise mismatch(file, "length", "is missing")


def check_size(file: ManifestFile, found: os.stat_result) -> None:
    """Raises CorruptData unless `found` is of a plain file, as long as the manifest says."""
    if not stat.S_ISREG(found.st_mode):
        raise mismatch(file, "kind", "is not a plain file")
    if found.st_size != file.size_bytes:
        raise mismatch(file, "length", f"has {found.st_size} bytes, not {file.size_bytes}")


def open_plain(path: Path) -> BinaryIO:
    """Opens a regular file; a link, a device or a pipe would lead out of the artifact, or hang whoever reads it.

    Raises:
        CorruptData: It is something else.
        FileNotFoundError, NotADirectoryError: Nothing is there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failure:
        if failure.errno in _NOT_PLAIN:
            raise _not_plain(path.name) from None
        raise
    reader = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        reader.close()
        raise _not_plain(path.name)
    return reader


def open_file(directory: Path, file: ManifestFile) -> BinaryIO:
    """Opens a file of the manifest, as `open_plain` does; it has the manifest's size.

    Raises:
        CorruptData: It is missing, no plain file, or of another size.
    """
    try:
        reader = open_plain(directory / file.path)
    except (FileNotFoundError, NotADirectoryError):
        raise mismatch(file, "length", "is missing") from None
    try:
        check_size(file, os.fstat(reader.fileno()))
    except CorruptData:
        reader.close()
        raise
    return reader


def mismatch(file: ManifestFile, region: str, what: str) -> CorruptData:
    """The error for a file that is not the manifest's: names file, region and remedy."""
    return CorruptData(
        f"{file.path} {what}; fetch or convert the artifact again",
        metadata={"file": file.path, "region": region},
    )


def _unknown(name: str) -> CorruptData:
    return CorruptData(
        f"{name!r} lies in the artifact's directory and not in its manifest; remove it, or fetch or convert the "
        "artifact again",
        reason="UNKNOWN_FILE",
        metadata={"file": name},
    )


def _not_plain(name: str) -> CorruptData:
    return CorruptData(
        f"{name} is not a plain file; fetch or convert the artifact again",
        metadata={"file": name, "region": "kind"},
    )


def _entries(directory: Path) -> dict[str, os.stat_result]:
    """What lies in the directory, by name; links are not followed."""
    with os.scandir(directory) as entries:
        found = {
            entry.name: entry.stat(follow_symlinks=False) for entry in itertools.islice(entries, MAX_ENTRIES)
        }
        if next(entries, None) is not None:
            raise CorruptData(
                f"the artifact's directory has more than {MAX_ENTRIES} entries; leave only what its manifest names",
                reason="UNKNOWN_FILE",
            )
    return found
