"""A file of a source: a plain one, or a link to one."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from services.common.errors import InvalidRequest

_KINDS: Final = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def is_there(path: Path) -> bool:
    """Whether there is such a file.

    Raises:
        InvalidRequest: Something else has the name.
        OSError: It cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_symlink():
            return False
        kind = "a link to a file that is not there"
    else:
        if stat.S_ISREG(mode):
            return True
        kind = _KINDS[stat.S_IFMT(mode)]
    raise InvalidRequest(f"{path.name} is {kind}; put the file itself in its place", reason="NOT_A_FILE")
