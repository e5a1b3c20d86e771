"""The choice of the next token. Each row of logits on its own and in a fixed order, so that no batch changes it."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from services.common.errors import InternalError
from services.engine.sequence import Sampling

NOT_FINITE: Final = "NOT_FINITE"  # the reason of such a failure

_CHOICE_INDEX: Final = 0  # of several answers to one request; there is one so far
_GREEDY_BELOW: Final = 1e-5  # colder than this the likeliest token takes it all, and float32 would overflow
_STRETCH: Final = 256
_GROUP: Final = 64

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]


def choose(logits: Floats, sampling: Sampling, position: int) -> int:
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
            "the model produced numbers that are not finite for this request", reason=NOT_FINITE
        )
    if sampling.temperature < _GREEDY_BELOW or sampling.top_k == 1:
        return int(logits.argmax())  # the lowest id wins a tie
    weights = np.exp((logits - logits.max()) / np.float32(sampling.temperature))
    ids = _kept(weights, sampling.top_k, sampling.top_p)
    at = _draw(weights if ids is None else weights[ids], uniform(sampling.seed, position))
    return at if ids is None else int(ids[at])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one token: Philox 4x64-10 (Salmon et al. 2011), keyed by seed, counted by position."""
    philox = np.random.Philox(key=seed + (_CHOICE_INDEX << 64), counter=position)
    return float(np.random.Generator(philox).random())


def _draw(weights: Floats, at: float) -> int:
    """The place in `weights` that `at` of their sum falls on: first the stretch of 256, then the place in it."""
    stretches = np.pad(weights, (0, -len(weights) % _STRETCH)).reshape(-1, _STRETCH)
    heap = stretches.sum(axis=1, dtype=np.float64).cumsum()
    wanted = at * heap[-1]
    stretch = min(int(heap.searchsorted(wanted, side="right")), len(heap) - 1)
    before = heap[stretch - 1] if stretch else 0.0
    within = int(stretches[stretch].cumsum(dtype=np.float64).searchsorted(wanted - before, side="right"))
    return min(stretch * _STRETCH + within, len(weights) - 1)


def _kept(weights: Floats, top_k: int, top_p: float) -> Ids | None:
    """The ids that top_k and then top_p keep, likeliest first; None for all of them."""
    ids = None
    if 0 < top_k < len(weights):
        ids = _likeliest(weights, top_k)
    if top_p < 1:
        ids = _nucleus(weights, ids, top_p)
    return ids


def _nucleus(weights: Floats, ids: Ids | None, top_p: float) -> Ids:
    """The likeliest ids whose weights make up `top_p` of the whole, of `ids` (sorted) or of all."""
    among = weights if ids is None else weights[ids]
    wanted = top_p * float(among.sum(dtype=np.float64))
    if ids is None:
        # All weights below this one together are less than what top_p leaves out.
        least = (float(among.sum(dtype=np.float64)) - wanted) / len(weights)
        ids = _sorted(weights, np.flatnonzero(weights >= least))
        among = weights[ids]
    return ids[: int(among.cumsum(dtype=np.float64).searchsorted(wanted)) + 1]


def _likeliest(weights: Floats, count: int) -> Ids:
    """Ids of the `count` greatest weights, greatest first, the lower id first among equals."""
    ids = np.flatnonzero(weights >= _bound(weights, count))
    return _sorted(weights, ids)[:count]


def _bound(weights: Floats, count: int) -> float:
    """A weight that at least `count` weights reach, and not many more: the least of that many stretches' greatest."""
    whole = len(weights) - len(weights) % _GROUP
    greatest = weights[:whole].reshape(-1, _GROUP).max(axis=1)
    among = greatest if len(greatest) >= count else weights
    return float(np.partition(among, len(among) - count)[len(among) - count])


def _sorted(weights: Floats, ids: Ids) -> Ids:
    """`ids`, which rise, by falling weight; stable, so the lower id comes first among equals."""
    return ids[np.argsort(-weights[ids], kind="stable")]
