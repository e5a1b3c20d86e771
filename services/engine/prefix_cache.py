"""Keys and values of prompts that were computed before, found by the tokens that they are of. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from types import TracebackType
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from services.engine.page import Page
from services.engine.prefix_key import PAGE_TOKENS, Origin, Sharers, chain, root
from services.engine.reservation import Reservation

_Int32s = npt.NDArray[np.int32]
_SLICE: Final = 256  # pages
_Pages = dict[bytes, Page]  # by name


class PrefixCache:
    """Knows the pages of every generation; the pool says which of them stay.

    A page is written once, before it comes in here, and never again; whoever reads it pins it. Pages that nobody uses
    are room for new reservations and go longest unused first, the ends of prompts before their beginnings.

    Attributes:
        asked_tokens: Tokens of the prompts that were looked up, each once.
        found_tokens: How many of them were there.
    """

    def __init__(self) -> None:
        self.asked_tokens = 0
        self.found_tokens = 0
        self._pages: dict[Origin, _Pages] = {}

    def find(self, origin: Origin, sharers: Sharers, tokens: Ordered[int] | _Int32s) -> Prefix:
        """The longest beginning of `tokens` that is there, but for its last token: that one is to be computed.

        Args:
            origin: What computes the request.
            sharers: Pages are shared only among these.
            tokens: Those of its prompt, and of its answer so far.
        """
        prefix = Prefix(self, self._pages.setdefault(origin, {}), root(origin, sharers))
        prefix.find(tokens[:-1])
        return prefix

    def forget(self, origin: Origin) -> Iterator[None]:
        """Nothing of this origin is found any more, and its pages become free: the next one writes where it wrote.

        It pauses after every slice, each of a millisecond or so, so that others get their turn.
        """
        pages = list(self._pages.pop(origin, {}).values())
        for start in range(0, len(pages), _SLICE):
            for page in pages[start : start + _SLICE]:
                page.drop()
            yield


class Prefix:
    """The pages of one request, in the order of its tokens: a scope that lets go of them, the last first.

    Args:
        cache: Counts look-ups.
        pages: Those of its origin; its own are added.
        root_name: Where its chain of names begins.

    Attributes:
        blocks: Ids of the pages that were found.
    """

    def __init__(self, cache: PrefixCache, pages: _Pages, root_name: bytes) -> None:
        self.blocks: tuple[int, ...] = ()
        self._cache = cache
        self._pages = pages
        self._name = root_name  # of the last page that was looked at
        self._known = 0  # pages that were looked at
        self._pinned: list[Page] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._pinned:
            self._pinned.pop().unpin()

    @property
    def tokens(self) -> int:
        """How many tokens were found."""
        return len(self.blocks) * PAGE_TOKENS

    def begin(self, prompt_tokens: int) -> None:
        """A request of so many tokens begins with it: the look-up counts."""
        self._cache.asked_tokens += prompt_tokens
        self._cache.found_tokens += self.tokens

    @property
    def lone_bytes(self) -> int:
        """In pages that nobody else uses."""
        return sum(page.total_bytes for page in self._pinned if page.is_lone)

    def find(self, tokens: Ordered[int] | _Int32s) -> None:
        """Pins the pages of `tokens` that are there, up to the first that is not."""
        for name in chain(self._name, tokens):
            page = self._pages.get(name)
            if page is None or not page.pin():  # a sequence that grows may take it at any moment
                break
            self._note(name, page)
        self.blocks = tuple(page.block for page in self._pinned)

    def add(self, tokens: _Int32s, table: _Int32s, reservation: Reservation) -> None:
        """Makes pages of all whole ones that are computed and not yet here; the request goes on using them.

        Args:
            tokens: The request's from its first, as far as their keys and values are stored.
            table: Ids of its blocks.
            reservation: Has those that were not found.
        """
        whole = len(tokens) // PAGE_TOKENS
        names = chain(self._name, tokens[self._known * PAGE_TOKENS : whole * PAGE_TOKENS])
        for block, name in zip(table[self._known : whole], names, strict=True):
            if name in self._pages:  # another request was faster: its page serves others, our block ourselves
                self._name, self._known = name, self._known + 1
            else:
                evicted = functools.partial(self._pages.pop, name)
                page = self._pages[name] = reservation.part_with(int(block), evicted)
                self._note(name, page)

    def _note(self, name: bytes, page: Page) -> None:
        self._pinned.append(page)
        self._name, self._known = name, self._known + 1
