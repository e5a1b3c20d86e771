"""What every token of an answer was chosen from: the bits of its whole row of logits."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import torch

from services.engine.kernels.protocol import Decoder
from services.engine.loaded_model import ModelOnArena
from services.engine.ragged import Ragged
from services.engine.sequence import Sequence


class Witness:
    """Stands between a model and its decoder, and tells rows of logits apart by the block that their token went into.

    Args:
        model: Nobody else uses its arena.

    Attributes:
        under_way: Gives the sequences that a step may be of; set by the owner.
        before: Called before every step; set by the owner.
        seen: Digests of the rows that were computed for a request, by its id, in order.
        most_together: Sequences in the largest step so far.
    """

    under_way: Callable[[], Iterable[Sequence]]
    before: Callable[[], object]

    def __init__(self, model: ModelOnArena) -> None:
        self.seen: collections.defaultdict[str, list[bytes]] = collections.defaultdict(list)
        self.under_way = list
        self.before = lambda: None
        self.most_together = 0
        self._decoder: Decoder = model._decoder
        model._decoder = self  # type: ignore[assignment]  # a model asks it for steps alone

    def forward(self, step: Ragged, blocks: torch.Tensor) -> torch.Tensor:
        """Computes as the decoder does."""
        self.before()
        logits = self._decoder.forward(step, blocks)
        self.most_together = max(self.most_together, len(step.tables))
        owners = {int(it.table[-1]): it.request.id for it in self.under_way() if len(it.table)}
        for row, at in zip(logits.numpy(), step.sample_rows, strict=True):
            table = step.tables[np.searchsorted(step.rows, at, side="right") - 1]
            digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            self.seen[owners[int(table[step.positions[at] // 16])]].append(digest)
        return logits
