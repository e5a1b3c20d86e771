"""A right to some blocks of the arena."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from services.engine.page import Page
from services.engine.span_set import Run, Span, SpanSet

if TYPE_CHECKING:
    from services.engine.block_pool import BlockPool


class Reservation:
    """Blocks, handed out one by one, to which more may come; a scope that gives all of them back, once.

    Attributes:
        block_bytes: Size of each.
        blocks: How many there are, without those that it has parted with.
    """

    def __init__(self, pool: BlockPool, block_bytes: int, runs: Iterable[Run]) -> None:
        self.block_bytes = block_bytes
        self._pool = pool
        self.blocks = 0
        self._runs: list[Run] = []
        self._parted: set[int] = set()
        self._untaken: collections.deque[int] = collections.deque()
        self._add(runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def total_bytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def untaken(self) -> int:
        """How many blocks can be taken; to be asked by any thread."""
        return len(self._untaken)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The stretches that its blocks came in, in order of the sequence, with those that it has parted with."""
        return tuple(self._runs)

    def take(self) -> int:
        """The id of a block that nobody else writes to; another thread may call this.

        Raises:
            ValueError: Every block of the reservation has been taken.
        """
        if not self._untaken:
            raise ValueError(
                "all reserved blocks are taken: grow the reservation before its sequence needs more"
            )
        return self._untaken.popleft()

    def grow(self, blocks: int) -> None:
        """Adds blocks; cannot fail after `BlockPool.can_grow` said yes, if `BlockPool.lock` was held since.

        Args:
            blocks: How many more.

        Raises:
            ValueError: It would have said no.
        """
        with self._pool.lock:
            self._add(self._pool._grow(self, blocks))  # noqa: SLF001  # the parts of one lending

    def part_with(self, block: int, evicted: Callable[[], object]) -> Page:
        """Makes a page of a taken block, which outlives the reservation; its maker is its first user.

        Args:
            block: Its id. Nobody writes to it any more.
            evicted: As `Page` has it.

        Raises:
            ValueError: It is no block of this reservation (any more).
        """
        with self._pool.lock:
            if block in self._parted or not any(0 <= block - run.first < run.blocks for run in self._runs):
                raise ValueError(f"block {block} is not in this reservation (any more)")
            self._parted.add(block)
            self.blocks -= 1
            page = Page(self._pool, block, self.block_bytes, evicted)
            self._pool._part(page)  # noqa: SLF001  # the parts of one lending
        return page

    def close(self) -> None:
        """Gives every block back, taken or not, that it has not parted with.

        Raises:
            KeyError: They were given back before.
        """
        with self._pool.lock:
            self._pool._give_back(self)  # noqa: SLF001  # the parts of one lending

    def spans(self) -> tuple[Span, ...]:
        """The bytes of its blocks."""
        own = SpanSet(run.span(self.block_bytes) for run in self._runs)
        for block in self._parted:
            own.remove(Run(block, 1).span(self.block_bytes))
        return own.spans

    def _add(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.blocks += run.blocks
            self._note(run)
            self._untaken.extend(range(run.first, run.first + run.blocks))

    def _note(self, run: Run) -> None:
        """As a stretch of its own, unless it goes on where the last one ends."""
        first, blocks = self._runs[-1] if self._runs else run._replace(blocks=0)
        if first + blocks == run.first:
            self._runs[-1:] = [Run(first, blocks + run.blocks)]
        else:
            self._runs.append(run)
