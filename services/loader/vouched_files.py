"""Files of a directory that this process has verified, known again for as long as nobody has touched them."""

from __future__ import annotations

from services.loader.file_stamp import FileStamp


class VouchedFiles:
    """Names of files, each with what the kernel said of the file when it was verified."""

    def __init__(self) -> None:
        self._stamps: dict[str, FileStamp] = {}

    def add(self, name: str, descriptor: int) -> None:
        """The open file of that name has just been verified."""
        self._stamps[name] = FileStamp.of(descriptor)

    def has(self, name: str, descriptor: int) -> bool:
        """Whether the open file of that name is one that was added, as it was then."""
        return self._stamps.get(name) == FileStamp.of(descriptor)

    def forget(self, name: str) -> None:
        self._stamps.pop(name, None)
