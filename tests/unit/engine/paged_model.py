"""A stand-in whose keys and values lie in the arena's own bytes: whoever writes where it should not changes an answer."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from typing import Final

import numpy as np
import numpy.typing as npt

from services.common.kv import BLOCK_TOKENS
from services.engine.arena import Arena
from services.engine.prefix_key import Origin
from services.engine.ragged import Int32s, Ragged
from tests.unit.engine.fakes import VOCABULARY, CountingModel

_Int64s = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_LOUD: Final = 1000.0  # a logit that leaves the others no chance, whatever the temperature


class PagedModel(CountingModel):
    """Stores some words for every token, and answers with the sum of all that is stored before.

    Args:
        weight: Makes its values, and so its answers, other than those of other models; odd.
        words: For every token: with these its blocks are larger.
        arena: Where they lie.

    Attributes:
        failures: How many of its next steps fail.
        spoiled: In how many of its next steps the first row is no number.
        faults: How many of both there were.
    """

    def __init__(self, weight: int, words: int, arena: Arena) -> None:
        super().__init__()
        self.origin = Origin(f"{weight:064x}", "", "int64")
        self.block_bytes = BLOCK_TOKENS * 8 * words
        self.failures = self.spoiled = self.faults = 0
        self.weight = weight
        self.words = words
        whole = arena._bytes.numel() // self.block_bytes
        self._blocks = arena._bytes.numpy()[: whole * self.block_bytes].reshape(whole, self.block_bytes)
        self._stored = self._blocks.view(np.int64).reshape(whole * BLOCK_TOKENS, words)

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("injected")
        chosen = list(self._chosen(step))
        logits = np.zeros((len(chosen), VOCABULARY), np.float32)
        logits[np.arange(len(chosen)), chosen] = _LOUD
        if self.spoiled and chosen:
            self.spoiled -= 1
            logits[0, 0] = np.nan
        return logits

    def read_blocks(self, blocks: Int32s) -> _Bytes:
        return self._blocks[blocks]

    def write_blocks(self, blocks: Int32s, content: _Bytes) -> None:
        self._blocks[blocks] = content

    def answer(self, prompt: Ordered[int], tokens: int) -> list[int]:
        """What it says when nothing goes wrong."""
        known, length = np.zeros(len(prompt) + tokens, np.int64), len(prompt)
        known[:length] = prompt
        total = int(self._values(known[:length], np.arange(length)).sum())
        for at in range(length, length + tokens):
            known[at] = total % VOCABULARY
            total += int(self._values(known[at : at + 1], np.array([at])).sum())
        return [int(token) for token in known[length:]]

    def _chosen(self, step: Ragged) -> Iterator[int]:
        due = set(step.sample_rows.tolist())
        for table, begin, end in zip(step.tables, step.rows, step.rows[1:], strict=False):
            positions = step.positions[begin:end]
            self._stored[_places(table, positions)] = self._values(step.token_ids[begin:end], positions)
            if end - 1 in due:
                known = np.arange(step.positions[end - 1] + 1)
                yield int(self._stored[_places(table, known)].sum()) % VOCABULARY

    def _values(
        self, tokens: npt.NDArray[np.signedinteger], positions: npt.NDArray[np.signedinteger]
    ) -> _Int64s:
        """[tokens, words]."""
        values = self.weight * (tokens.astype(np.int64) + 1) * (2 * positions.astype(np.int64) + 1)
        return values[:, None] * (2 * np.arange(self.words) + 1)


def _places(table: Int32s, positions: npt.NDArray[np.signedinteger]) -> npt.NDArray[np.signedinteger]:
    return table[positions // BLOCK_TOKENS].astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS
