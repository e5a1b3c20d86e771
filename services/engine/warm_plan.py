"""What a model is warmed up with before anybody may ask it. Pure."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from services.common.text.representative_prompts import RepresentativePrompt
from services.engine.sequence import Sampling

COMMONEST: Final = 3  # batch sizes, of those that the engine computes most
FIRST_BATCHES: Final = {8: 1}  # of an engine that has computed none yet
MOST_ROWS: Final = (
    16  # of a batch: a larger one computes no other way, and holds up those who are served for longer
)
FEW_TOKENS: Final = 4  # of an answer of which nothing is expected

# Of three tokens one at least is decoded by all rows together, in whatever steps they have begun.
_SAMPLED: Final = Sampling(temperature=1.0, top_k=50, top_p=0.9, max_tokens=3)


class WarmRequest(NamedTuple):
    """One request of a warm-up.

    Attributes:
        number: Of the representative request that it is; 0 of one that is made up.
        expected: How its answer must begin.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    number: int = 0
    expected: tuple[int, ...] = ()


class WarmRound(NamedTuple):
    """Requests that are computed together.

    Attributes:
        is_needed: Whether it may not be left out where it would take too much of the arena.
    """

    requests: tuple[WarmRequest, ...]
    is_needed: bool


class Shapes(NamedTuple):
    """What steps look like in this engine.

    Attributes:
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most sequences under way at once.
        max_tokens: Most tokens of a prompt and its answer, by the model's context and the arena.
        sizes: How many times so many tokens were computed together.
    """

    chunk_tokens: int
    max_batch: int
    max_tokens: int
    sizes: Mapping[int, int]


def plan(prompts: Sequence[RepresentativePrompt], shapes: Shapes) -> list[WarmRound]:
    """The rounds, in order: the shortest request, the artifact's own, batches as they are common here, a whole chunk.

    A representative request that does not fit this engine is left out.
    """
    own = [_own(prompt) for prompt in prompts]
    fitting = tuple(each for each in own if len(each.prompt) + each.sampling.max_tokens <= shapes.max_tokens)
    rounds = [WarmRound((WarmRequest((0, 0), Sampling(max_tokens=2)),), is_needed=True)]
    if fitting:
        rounds.append(WarmRound(fitting, is_needed=True))
    rounds += [WarmRound((WarmRequest((0,), _SAMPLED),) * rows, is_needed=False) for rows in _batches(shapes)]
    chunk = max(1, min(shapes.chunk_tokens, shapes.max_tokens - 1))
    rounds.append(WarmRound((WarmRequest((0,) * chunk, Sampling(max_tokens=1)),), is_needed=False))
    return rounds


def _own(prompt: RepresentativePrompt) -> WarmRequest:
    expected = prompt.expected_token_ids
    sampling = Sampling(max_tokens=len(expected) or FEW_TOKENS)
    return WarmRequest(prompt.token_ids, sampling, prompt.number, expected)


def _batches(shapes: Shapes) -> list[int]:
    """The batch sizes that steps have most, but for 1; a step with prompts in it may count as one, too."""
    most = min(shapes.max_batch, MOST_ROWS)
    sizes = collections.Counter({size: count for size, count in shapes.sizes.items() if 1 < size <= most})
    common = [size for size, _ in sizes.most_common(COMMONEST)]
    return common or [size for size in FIRST_BATCHES if size <= most]
