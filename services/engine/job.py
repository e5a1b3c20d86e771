"""A request as the step thread has it: its sequence, and what computes it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from services.common.errors import HalogenError
from services.engine.preemption import Way
from services.engine.ragged import Ragged
from services.engine.reservation import Reservation
from services.engine.sequence import Sequence

Blocks = npt.NDArray[np.uint8]  # [blocks, block_bytes]


class StepModel(Protocol):
    """What computes a step: one generation's weights over its view of the arena."""

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        """Logits of the step's sample_rows, [rows, vocabulary]; keys and values of all its tokens are stored."""
        ...

    def read_blocks(self, blocks: npt.NDArray[np.int32]) -> Blocks:
        """A copy of what these blocks hold, in their order."""
        ...

    def write_blocks(self, blocks: npt.NDArray[np.int32], content: Blocks) -> None:
        """Puts into these blocks what was read from as many."""
        ...


class Saved(NamedTuple):
    """Keys and values of a sequence's first tokens, outside of the arena.

    Attributes:
        tokens: How many.
        blocks: What its blocks held, in their order.
    """

    tokens: int
    blocks: Blocks


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """A sequence with the model that computes it.

    Attributes:
        is_background: Nobody waits for its answer.
        ending: What it is to end with before its next step; may be set by another thread at any time.
        saved: What was copied out of the arena when it was set back; the step thread's own.
    """

    sequence: Sequence
    model: StepModel
    is_background: bool = False
    ending: HalogenError | None = None
    saved: Saved | None = None

    def set_back(self, way: Way, most_blocks: int) -> None:
        """Lets go of its blocks; by a swap what they hold is copied first, unless it has become more than that."""
        sequence = self.sequence
        if way is Way.SWAP and len(sequence.table) <= most_blocks:
            self.saved = Saved(sequence.computed, self.model.read_blocks(sequence.table))
        sequence.set_back()

    def come_back(self, reservation: Reservation, prefix: tuple[int, ...]) -> None:
        """Takes its place again, with what was saved and is not in `prefix` put into blocks of its own."""
        sequence, saved = self.sequence, self.saved
        sequence.come_back(reservation, prefix)
        self.saved = None
        if saved is not None and saved.tokens > sequence.computed:
            found = len(sequence.table)
            self.model.write_blocks(sequence.restore(saved.tokens), saved.blocks[found:])


class SetBack(NamedTuple):
    """An order to the step thread: the job gives up its blocks before the next step.

    Attributes:
        most_blocks: So many there is room for outside of the arena.
    """

    job: Job
    way: Way
    most_blocks: int = 0


class ComeBack(NamedTuple):
    """An order to the step thread: the job has blocks again."""

    job: Job
    reservation: Reservation
    prefix: tuple[int, ...]


Order = SetBack | ComeBack
