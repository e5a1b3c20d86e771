"""The plain batcher that ours is measured against: it computes the same, first come, first served, in fixed blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from bench.fifo_batch import FIXED_TOKENS, FifoBatch, Row
from services.engine.ragged import Ragged

VOCABULARY = 50


class CountingModel:
    """Says the next number of a prompt's last one, and remembers which pages held what."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.stored: dict[tuple[int, int], int] = {}  # page and place to token

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        self.sizes.append(len(step.token_ids))
        for number, table in enumerate(step.tables):
            for place in range(step.rows[number], step.rows[number + 1]):
                position = int(step.positions[place])
                self.stored[int(table[position // 16]), position % 16] = int(step.token_ids[place])
        logits = np.zeros((len(step.sample_rows), VOCABULARY), np.float32)
        logits[np.arange(len(logits)), (step.token_ids[step.sample_rows] + 1) % VOCABULARY] = 1
        return logits


@pytest.fixture
def model() -> CountingModel:
    return CountingModel()


def batch(model: CountingModel, blocks: int = 4) -> FifoBatch:
    return FifoBatch(model, arena_tokens=blocks * FIXED_TOKENS, chunk_tokens=64, max_batch=8)


def finish(batch: FifoBatch) -> list[int]:
    """The names of requests in the order of their ends."""
    ends = []
    while not batch.is_idle:
        ends += [row.name for row, is_over in batch.step() if is_over]
    return ends


def test_every_request_gets_its_own_continuation(model: CountingModel) -> None:
    """Whatever runs beside it, however its prompt was cut; every token lies in a page of its own.

    Fault injection: turns red when `pages` counts fixed blocks as the kernels' pages.
    """
    rows = [Row(number, [number] * (100 * number + 1), 3, 3) for number in range(3)]
    under_test = batch(model)
    for row in rows:
        under_test.add(row)
    finish(under_test)
    assert [[n + 1, n + 2, n + 3] for n in range(3)] == [list(row.tokens[-3:]) for row in rows]
    assert sum(len(row.tokens) - 1 for row in rows) == len(model.stored)
    assert max(model.sizes) <= 64 + 2


def test_whoever_finds_no_room_holds_up_all_behind(model: CountingModel) -> None:
    """A short request behind a long one waits with it, though it would fit: that is what plain means.

    Fault injection: turns red when `_admit` looks past the head of its queue.
    """
    under_test = batch(model, blocks=2)
    for name, tokens in enumerate((200, 400, 1)):
        under_test.add(Row(name, [1] * 10, tokens, tokens))
    under_test.step()
    assert [0] == [row.name for row in under_test.running]
    assert [0, 1, 2] == finish(under_test)


def test_room_is_kept_for_all_that_an_answer_may_become(model: CountingModel) -> None:
    """Of blocks, those for the longest answer; in use are those that hold anything."""
    under_test = batch(model)
    row = Row(1, [1] * 10, 2, 600)
    under_test.add(row)
    under_test.step()
    assert (3, FIXED_TOKENS) == (len(row.blocks), row.taken_tokens)
