"""A stand-in that answers by the keys and values that it finds, so that a wrong page gives a wrong answer."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from services.common.kv import BLOCK_TOKENS
from services.engine.prefix_key import Origin
from services.engine.ragged import Ragged
from tests.unit.engine.fakes import VOCABULARY, CountingModel

Memory = dict[tuple[int, int], int]  # block and place in it, to what is stored there


class ReadingModel(CountingModel):
    """Stores every token of a step, then reads all that is stored before the tokens that are due.

    Args:
        weight: Makes its values, and so its answers, other than those of other models.
        memory: The arena's; models share it.
    """

    def __init__(self, weight: int, memory: Memory) -> None:
        super().__init__()
        self.origin = Origin(f"{weight:064x}", "", "float32")
        self._weight = weight
        self._memory = memory

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        self.steps.append(step)
        chosen: list[int] = []
        for table, begin, end in zip(step.tables, step.rows, step.rows[1:], strict=False):
            for token, position in zip(step.token_ids[begin:end], step.positions[begin:end], strict=True):
                self._memory[self._place(table, position)] = self._value(token, position)
            if end - 1 in step.sample_rows:
                positions = range(step.positions[end - 1] + 1)
                chosen.append(sum(self._memory[self._place(table, at)] for at in positions) % VOCABULARY)
        logits = np.zeros((len(chosen), VOCABULARY), np.float32)
        logits[np.arange(len(chosen)), chosen] = 1
        return logits

    def read_blocks(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        values = [[self._memory.get((int(block), at), 0) for at in range(BLOCK_TOKENS)] for block in blocks]
        return np.array(values, np.int64).reshape(len(blocks), BLOCK_TOKENS).view(np.uint8)

    def write_blocks(self, blocks: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        for block, values in zip(blocks, content.view(np.int64), strict=True):
            self._memory.update({(int(block), at): int(value) for at, value in enumerate(values)})

    def answer(self, prompt: Ordered[int], tokens: int) -> list[int]:
        """What it says when nothing goes wrong."""
        known = list(prompt)
        for _ in range(tokens):
            known.append(sum(self._value(token, at) for at, token in enumerate(known)) % VOCABULARY)
        return known[len(prompt) :]

    def _value(self, token: int, position: int) -> int:
        return int(self._weight * (token + 1) * (2 * position + 1))

    def _place(self, table: npt.NDArray[np.int32], position: int) -> tuple[int, int]:
        return int(table[position // BLOCK_TOKENS]), int(position % BLOCK_TOKENS)
