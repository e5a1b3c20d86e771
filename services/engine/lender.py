"""Who lends a model to requests: the engine knows no more than this of generations."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from services.common.checkpoint.graph_hash import Built
from services.engine.job import StepModel
from services.engine.prefix_key import Origin


class LoadedModel(StepModel, Protocol):
    """A model over its weights and its view of the arena."""

    vocab_size: int
    block_bytes: int
    max_context_tokens: int
    weights_bytes: int
    built: Built | None  # all five parts of its graph hash; None for a stand-in
    origin: Origin  # of its keys and values


class Lender(Protocol):
    """Has a model, and counts its users."""

    def use(self) -> AbstractContextManager[LoadedModel]:
        """Keeps the model while the scope lasts."""
        ...
