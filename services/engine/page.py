"""A block that is written and stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.engine.span_set import Run, Span

if TYPE_CHECKING:
    from services.engine.block_pool import BlockPool


class Page:
    """A block that is kept as long as anybody uses it, and after that until its bytes are needed.

    Args:
        evicted: Called when its bytes are taken for something else; it is not to be pinned any more.

    Attributes:
        block: Its id.
        is_gone: Its bytes are free, or somebody else's.
    """

    def __init__(self, pool: BlockPool, block: int, block_bytes: int, evicted: Callable[[], object]) -> None:
        self.block = block
        self.evicted = evicted
        self.is_gone = False
        self._block_bytes = block_bytes
        self._pool = pool
        self._pins = 1
        self._is_kept = True

    @property
    def total_bytes(self) -> int:
        return self._block_bytes

    @property
    def is_lone(self) -> bool:
        """Whether exactly one user has it: its bytes are room as soon as that one lets go."""
        return self._pins == 1

    @property
    def span(self) -> Span:
        return Run(self.block, 1).span(self._block_bytes)

    def pin(self) -> bool:
        """One more user, after whom `unpin` follows once; False if it is gone."""
        with self._pool.lock:
            if self.is_gone:
                return False
            if not self._pins:
                self._pool._use(self)  # noqa: SLF001  # the parts of one lending
            self._pins += 1
        return True

    def unpin(self) -> None:
        """One user less; the last one leaves it to be reclaimed."""
        with self._pool.lock:
            assert self._pins > 0
            self._pins -= 1
            if not self._pins:
                self._pool._rest(self)  # noqa: SLF001  # the parts of one lending
                self._free_if_unkept()

    def drop(self) -> None:
        """Keeps it no longer than anybody uses it: its bytes are free after that. It is not to be pinned any more."""
        with self._pool.lock:
            self._is_kept = False
            self._free_if_unkept()

    def _free_if_unkept(self) -> None:
        if not (self._is_kept or self._pins or self.is_gone):
            self._pool._free_unused(self)  # noqa: SLF001  # the parts of one lending
