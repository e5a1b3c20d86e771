"""The choice of the next token. Each row of logits on its own and in a fixed order, so that no batch changes it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from services.common.errors import InternalError
from services.engine.sequence import Sampling

_CHOICE_INDEX: Final = 0  # of several answers to one request; there is one so far
_FIRST_LOOK: Final = 256  # tokens sorted before looking further for the end of top_p

Logits = npt.NDArray[np.float32]


def choose(logits: Logits, sampling: Sampling, position: int) -> int:
    """The token that follows.

    Args:
        logits: [vocabulary].
        sampling: The request's own.
        position: Of the new token in its sequence: with the seed, the whole state of the generator.

    Raises:
        InternalError: A logit is not finite, so the model's numbers have broken down for this request.
    """
    if not np.isfinite(logits).all():
        raise InternalError(
            "the model produced numbers that are not finite for this request", reason="NOT_FINITE"
        )
    if sampling.temperature == 0 or sampling.top_k == 1:
        return int(logits.argmax())  # the lowest id wins a tie
    weights = np.exp((logits.astype(np.float64) - float(logits.max())) / sampling.temperature)
    ids, kept = _nucleus(weights, sampling.top_k or len(weights), sampling.top_p)
    return int(ids[_draw(kept, uniform(sampling.seed, position))])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one token: Philox 4x64-10 (Salmon et al. 2011), keyed by seed, counted by position."""
    philox = np.random.Philox(key=seed + (_CHOICE_INDEX << 64), counter=position)
    return float(np.random.Generator(philox).random())


def _draw(weights: npt.NDArray[np.float64], at: float) -> int:
    heap = weights.cumsum()
    return min(int(heap.searchsorted(at * heap[-1], side="right")), len(heap) - 1)


def _nucleus(
    weights: npt.NDArray[np.float64], top_k: int, top_p: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The tokens that top_k and then top_p keep, with their weights; likeliest first, unless all are kept."""
    if top_k >= len(weights) and top_p >= 1:
        return np.arange(len(weights)), weights
    if top_p >= 1:
        ids = _likeliest(weights, top_k)
        return ids, weights[ids]
    look = min(_FIRST_LOOK, top_k, len(weights))
    total = weights.sum() if top_k >= len(weights) else weights[_likeliest(weights, top_k)].sum()
    while True:
        ids = _likeliest(weights, look)
        mass = weights[ids].cumsum()
        enough = int(mass.searchsorted(top_p * total)) + 1
        if enough <= look or look >= min(top_k, len(weights)):
            return ids[:enough], weights[ids[:enough]]
        look = min(look * 8, top_k, len(weights))


def _likeliest(weights: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` greatest weights, greatest first, the lower id first among equals."""
    if count >= len(weights):
        return np.argsort(-weights, kind="stable")
    least = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = np.flatnonzero(weights > least)
    equal = np.flatnonzero(weights == least)[: count - len(above)]
    ids = np.concatenate((above, equal))
    return ids[np.lexsort((ids, -weights[ids]))]
