"""The plain way to batch: first come, first served, and memory for the worst case in fixed blocks. Pure but for the model.

Everybody's worst case is reserved before it begins, in blocks of 256 tokens; whoever finds no room holds up all behind
it. A step computes every running decode, and as much of the prompts, in order of arrival, as a chunk allows.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence as Ordered
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from services.common.kv import BLOCK_TOKENS
from services.engine.ragged import Int32s, Ragged

FIXED_TOKENS: Final = 256
_PAGES: Final = FIXED_TOKENS // BLOCK_TOKENS  # the kernels' pages in a fixed block


class StepModel(Protocol):
    """What computes a step; here nothing is ever set back."""

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        """Logits of the step's sample_rows, [rows, vocabulary]."""
        ...


class Row:
    """One request under way.

    Args:
        name: Its number.
        prompt: Its tokens.
        tokens: Of its answer.
        most: Tokens that its answer may have, for all that is known when it begins.
    """

    def __init__(self, name: int, prompt: Ordered[int], tokens: int, most: int) -> None:
        self.name = name
        self._worst_case = len(prompt) + most - 1  # the last token is never fed back
        self.tokens = np.empty(len(prompt) + tokens, np.int32)
        self.tokens[: len(prompt)] = prompt
        self.length = len(prompt)
        self.computed = 0
        self.blocks: list[int] = []  # fixed ones

    @property
    def needed_blocks(self) -> int:
        """Fixed blocks for its worst case."""
        return -(-self._worst_case // FIXED_TOKENS)

    @property
    def pages(self) -> Int32s:
        """Ids of the kernels' pages, as far as the next step may need them."""
        places = np.arange(_PAGES, dtype=np.int32)
        return np.concatenate([np.int32(block * _PAGES) + places for block in self.blocks])

    @property
    def taken_tokens(self) -> int:
        """What the fixed blocks that have anything in them would hold."""
        return -(-self.computed // FIXED_TOKENS) * FIXED_TOKENS


class Part(NamedTuple):
    """The next tokens of one request."""

    row: Row
    due: int


class FifoBatch:
    """All requests, waiting and under way.

    Args:
        model: Computes a step.
        arena_tokens: What its arena holds.
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most requests under way.
    """

    def __init__(self, model: StepModel, *, arena_tokens: int, chunk_tokens: int, max_batch: int) -> None:
        self._model = model
        self._chunk_tokens = chunk_tokens
        self._max_batch = max_batch
        self._free = list(range(arena_tokens // FIXED_TOKENS))
        self._waiting: collections.deque[Row] = collections.deque()
        self.running: list[Row] = []  # in order of arrival

    @property
    def is_idle(self) -> bool:
        return not (self.running or self._waiting)

    def add(self, row: Row) -> None:
        self._waiting.append(row)

    def step(self) -> list[tuple[Row, bool]]:
        """Computes one step; returns those that got a token, and whether it was their last."""
        self._admit()
        parts = self._plan()
        logits = self._model.forward(_laid_out(parts))
        due = [part.row for part in parts if part.row.computed + part.due == part.row.length]
        for row, count in parts:
            row.computed += count
        for row, choices in zip(due, logits, strict=True):
            row.tokens[row.length] = int(choices.argmax())
            row.length += 1
        return [(row, self._is_over(row)) for row in due]

    def _admit(self) -> None:
        while self._waiting and len(self.running) < self._max_batch:
            if (needed := self._waiting[0].needed_blocks) > len(self._free):
                return
            row = self._waiting.popleft()
            row.blocks = [self._free.pop() for _ in range(needed)]
            self.running.append(row)

    def _plan(self) -> list[Part]:
        left, parts = self._chunk_tokens, []
        for row in self.running:
            rest = row.length - row.computed
            if rest == 1 and row.computed:
                parts.append(Part(row, 1))
            elif left:
                parts.append(Part(row, min(left, rest)))
                left -= parts[-1].due
        return parts

    def _is_over(self, row: Row) -> bool:
        if row.length < len(row.tokens):
            return False
        self.running.remove(row)
        self._free += row.blocks
        return True


def _laid_out(parts: list[Part]) -> Ragged:
    rows = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([part.due for part in parts], out=rows[1:])
    spans = [range(row.computed, row.computed + count) for row, count in parts]
    due = [row.computed + count == row.length for row, count in parts]
    pages = [row.pages for row, _ in parts]
    tables = np.zeros((len(parts), max(map(len, pages))), np.int32)
    for table, own in zip(tables, pages, strict=True):
        table[: len(own)] = own
    return Ragged(
        token_ids=np.concatenate(
            [row.tokens[span.start : span.stop] for (row, _), span in zip(parts, spans, strict=True)]
        ),
        positions=np.concatenate([np.arange(span.start, span.stop, dtype=np.int32) for span in spans]),
        rows=rows,
        tables=tables,
        sample_rows=rows[1:][due] - 1,
    )
