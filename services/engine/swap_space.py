"""Host memory for keys and values that are out of the arena for a while. Pure bookkeeping: whoever copies has the bytes."""

from __future__ import annotations


class SwapSpace:
    """Bounds what lies outside.

    Args:
        total_bytes: The most; 0 for nothing at all.

    Attributes:
        total_bytes: As above.
        used_bytes: What is taken of it.
    """

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0

    @property
    def room_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def take(self, size_bytes: int) -> None:
        assert size_bytes <= self.room_bytes, "ask room_bytes first"
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        assert size_bytes <= self.used_bytes, "nobody gives back more than was taken"
        self.used_bytes -= size_bytes
