"""A model whose every step is held against what a step must give, while it is warmed up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from services.common.errors import InternalError
from services.engine.lender import Lender, LoadedModel
from services.engine.ragged import Ragged


class WarmModel:
    """A `LoadedModel`, and the `Lender` of itself.

    Args:
        model: What computes.
        lender: Whose model it is.

    Attributes:
        breach: What a step gave that no step may; empty as long as all is well.
    """

    def __init__(self, model: LoadedModel, lender: Lender) -> None:
        self.vocab_size = model.vocab_size
        self.block_bytes = model.block_bytes
        self.max_context_tokens = model.max_context_tokens
        self.weights_bytes = model.weights_bytes
        self.built = model.built
        self.origin = model.origin
        self.breach = ""
        self._model = model
        self._lender = lender

    @contextlib.contextmanager
    def use(self) -> Iterator[LoadedModel]:
        """Keeps the model while the scope lasts."""
        with self._lender.use():
            yield self

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        """As the model's.

        Raises:
            InternalError: Its logits are not [rows, vocabulary] of float32.
        """
        logits = self._model.forward(step)
        wanted = (len(step.sample_rows), self.vocab_size)
        if logits.shape != wanted or logits.dtype != np.float32:
            self.breach = f"logits are {logits.dtype} {list(logits.shape)}, not float32 {list(wanted)}"
            raise InternalError(self.breach, reason="OUTPUT_CONTRACT")
        return logits

    def read_blocks(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        """As the model's."""
        return self._model.read_blocks(blocks)

    def write_blocks(self, blocks: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        """As the model's."""
        self._model.write_blocks(blocks, content)
