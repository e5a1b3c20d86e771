"""Files that hold secrets: not for everybody's eyes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 1 << 20
_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP


class SecretRefused(ValueError):
    """A file that cannot be a secret's.

    Attributes:
        why: The same without setting and path, for where paths are nobody's business.
    """

    def __init__(self, setting: str, path: Path, why: str) -> None:
        super().__init__(f"{setting} {path}: {why}")
        self.why = why


def read_secret(path: Path, setting: str, remedy: str = "") -> bytes:
    """What the file holds.

    Its group may read it: processes that share a secret may be different users.

    Args:
        path: The file.
        setting: Which setting names it, for messages.
        remedy: How such a file is made, for messages.

    Raises:
        SecretRefused: It cannot be read, is no plain file or too long, or others may read it or write to it.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            _check(path, setting, os.fstat(file.fileno()))
            return file.read()
    except OSError as fault:
        why = (fault.strerror or "cannot be read").lower()
        raise SecretRefused(setting, path, f"{why}{remedy and '; ' + remedy}") from None


def _open_at_once(path: str, flags: int) -> int:
    """A pipe that nobody writes to is opened, too, and can then be refused."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check(path: Path, setting: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise SecretRefused(setting, path, "not a plain file")
    if found.st_mode & _OTHERS:
        raise SecretRefused(setting, path, "open to others than its owner; run chmod 600 on it")
    if found.st_size > _MAX_BYTES:
        raise SecretRefused(setting, path, f"longer than {_MAX_BYTES} bytes")
