"""The choice of the next token. Each row of logits on its own and in a fixed order, so that no batch changes it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Ordered
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from services.common.errors import InternalError
from services.engine.sequence import Sampling

NOT_FINITE: Final = "NOT_FINITE"  # the reason of such a failure

_CHOICE_INDEX: Final = 0  # of several answers to one request; there is one so far
_GREEDY_BELOW: Final = 1e-5  # colder than this the likeliest token takes it all, and float32 would overflow
_STRETCH: Final = 256
_LOOKS: Final = (512, 4096)  # so many of the likeliest are nearly always all that top_p keeps

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ids = npt.NDArray[np.intp]

log = structlog.get_logger()


class Draw(NamedTuple):
    """What a row of logits is for.

    Attributes:
        sampling: The request's own.
        position: Of the new token in its sequence: with the seed, the whole state of the generator.
    """

    sampling: Sampling
    position: int


class Choice(NamedTuple):
    """A token.

    Attributes:
        logprob: Natural logarithm of what the softmax of its row gives it, as float32 has it, before temperature, top_k
            and top_p; None where it was not asked for.
    """

    token: int
    logprob: float | None = None


def choose(logits: Floats, draws: Ordered[Draw]) -> list[Choice | InternalError]:
    """The tokens that follow; where that fails for a row, why: the others know nothing of it.

    Args:
        logits: [rows, vocabulary].
        draws: What each row is for.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # all of it is looked at or harmless
        best = logits.argmax(axis=1)  # the lowest id wins a tie; where there is a NaN, that is what is found
        sound = np.isfinite(logits[np.arange(len(best)), best]) & np.isfinite(logits.min(axis=1))
        return [
            _try(row, int(top), draw) if is_sound else _not_finite()
            for row, top, is_sound, draw in zip(logits, best, sound, draws, strict=True)
        ]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for one token: Philox 4x64-10 (Salmon et al. 2011), keyed by seed, counted by position."""
    philox = np.random.Philox(key=seed + (_CHOICE_INDEX << 64), counter=position)
    return float(np.random.Generator(philox).random())


def _not_finite() -> InternalError:
    return InternalError("the model produced numbers that are not finite for this request", reason=NOT_FINITE)


def _try(row: Floats, best: int, draw: Draw) -> Choice | InternalError:
    try:
        return _choose(row, best, draw)
    except Exception:
        log.exception("choice_failed", sampling=str(draw.sampling), position=draw.position)
        return InternalError("the engine failed while computing this request", reason="CHOICE_FAILED")


def _choose(row: Floats, best: int, draw: Draw) -> Choice:
    sampling = draw.sampling
    if sampling.temperature < _GREEDY_BELOW or sampling.top_k == 1:
        token = best
    else:
        token = _sampled(row - row[best], draw)
    return Choice(token, _logprob(row - row[best], token) if sampling.logprobs else None)


def _logprob(below: Floats, token: int) -> float:
    """Of logits less the greatest of them; nothing is rounded to float32 but the exponentials and the result."""
    whole = float(_sums(np.exp(below))[-1])
    return float(np.float32(float(below[token]) - math.log(whole)))


def _sampled(below: Floats, draw: Draw) -> int:
    """A token by chance, of logits less the greatest of them."""
    sampling, at = draw.sampling, uniform(draw.sampling.seed, draw.position)
    weights = np.exp(below * np.float32(1 / sampling.temperature))
    ids = _kept(weights, sampling.top_k, sampling.top_p)
    return _fall(weights, at) if ids is None else int(ids[_fall(weights[ids], at)])


def _sums(weights: Floats) -> Doubles:
    """Cumulated sums of stretches of 256: of each in float32, of all in float64."""
    return np.add.reduceat(weights, np.arange(0, len(weights), _STRETCH)).cumsum(dtype=np.float64)


def _fall(weights: Floats, at: float) -> int:
    """The place in `weights` that `at` of their sum falls on: first the stretch, then the place in it."""
    sums = _sums(weights)
    wanted = at * float(sums[-1])
    stretch = _place(sums, wanted)
    begin = stretch * _STRETCH
    before = float(sums[stretch - 1]) if stretch else 0.0
    return begin + _place(weights[begin : begin + _STRETCH].cumsum(dtype=np.float64), wanted - before)


def _place(sums: Doubles, wanted: float) -> int:
    """The first whose cumulated sum is over `wanted`, which rounding may have made as great as the last: never one of 0."""
    return min(int(sums.searchsorted(wanted, side="right")), int(sums.searchsorted(sums[-1])))


def _kept(weights: Floats, top_k: int, top_p: float) -> Ids | None:
    """The ids that top_k and then top_p keep, in rising order; None for all of them."""
    if 0 < top_k < len(weights):
        ids = np.flatnonzero(weights >= _bound(weights, top_k))
        ids = _first(weights, ids, _falling(weights[ids])[:top_k])
        return ids if top_p == 1 else ids[_nucleus(weights[ids], top_p)]
    return None if top_p == 1 else _nucleus(weights, top_p)


def _nucleus(weights: Floats, top_p: float) -> Ids:
    """The likeliest whose weights make up `top_p` of the whole (Holtzman et al. 2020): looked for among few at first."""
    whole = float(_sums(weights)[-1])
    # All weights below this one together are less than what top_p leaves out.
    least = (1 - top_p) * whole / len(weights)
    looks = (_bound(weights, count) for count in _LOOKS if count < len(weights))
    for bound in itertools.chain(looks, (0.0,)):
        ids = np.flatnonzero(weights >= max(least, bound))
        falling = _falling(weights[ids])
        mass = falling.cumsum(dtype=np.float64)
        if mass[-1] >= top_p * whole:
            break
    return _first(weights, ids, falling[: int(mass.searchsorted(top_p * whole)) + 1])


def _bound(weights: Floats, count: int) -> float:
    """A weight that at least `count` weights reach, and not many more: the least of that many groups' greatest."""
    groups = len(weights) // max(1, len(weights) // (2 * count))
    greatest = weights[: len(weights) // groups * groups].reshape(-1, groups).max(axis=0)
    return float(np.partition(greatest, groups - count)[groups - count])


def _falling(weights: Floats) -> Floats:
    return np.sort(weights)[::-1]


def _first(weights: Floats, ids: Ids, greatest: Floats) -> Ids:
    """Of `ids`, which rise, those of the `greatest` weights; of several that equal the least of these, the lowest."""
    among, least = weights[ids], greatest[-1]
    kept = among >= least
    surplus = np.count_nonzero(kept) - len(greatest)
    if surplus:
        kept[np.flatnonzero(among == least)[-surplus:]] = False
    chosen: Ids = ids[kept]
    return chosen
