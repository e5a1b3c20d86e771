"""How an answer is sampled: what the request asks, else what the artifact says, else greedy."""

from __future__ import annotations

import dataclasses
import math
import secrets
from typing import Final, NamedTuple, TypeVar

from services.common.completion import Sampling
from services.common.errors import InvalidRequest
from services.common.text.generation_defaults import GenerationDefaults

T = TypeVar("T")

MAX_TEMPERATURE: Final = 2.0
MAX_STOP_TOKENS: Final = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplingAsked:
    """What a request says; None where it leaves the choice to us."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool | None = None
    logprobs: bool | None = None

    def __post_init__(self) -> None:
        """Refuses what no model could do.

        Raises:
            InvalidRequest: Naming the parameter and its range.
        """
        _check("temperature", self.temperature, 0, MAX_TEMPERATURE)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise _out_of_range("top_p", self.top_p, "over 0 and at most 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise _out_of_range("max_tokens", self.max_tokens, "at least 1")
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise _out_of_range("stop_token_ids", len(self.stop_token_ids), f"at most {MAX_STOP_TOKENS} ids")


class Space(NamedTuple):
    """How much there is room for: the prompt's length, and the model's context and vocabulary, in tokens."""

    prompt_tokens: int
    context_tokens: int
    vocab_size: int


def resolve(
    asked: SamplingAsked, defaults: GenerationDefaults, space: Space, default_max_tokens: int
) -> Sampling:
    """Every parameter in effect. A seed is drawn where none is given.

    Args:
        asked: The request's.
        defaults: The artifact's.
        space: Of the model, and how much of it the prompt takes.
        default_max_tokens: What `max_tokens` is when not asked for, if there is that much room.

    Raises:
        InvalidRequest: A token id or top_k does not fit the vocabulary, or prompt and answer the context.
    """
    ignore_eos = bool(asked.ignore_eos)
    _check("top_k", asked.top_k, 0, space.vocab_size)
    return Sampling(
        temperature=_first(asked.temperature, defaults.temperature),
        top_k=_first(asked.top_k, min(defaults.top_k, space.vocab_size)),
        top_p=_first(asked.top_p, defaults.top_p),
        seed=_first(asked.seed, secrets.randbits(63)),
        max_tokens=_max_tokens(asked.max_tokens, space, default_max_tokens),
        stop_token_ids=_stop_token_ids(asked, () if ignore_eos else defaults.eos_token_ids, space.vocab_size),
        ignore_eos=ignore_eos,
        logprobs=bool(asked.logprobs),
    )


def _first(asked: T | None, otherwise: T) -> T:
    return otherwise if asked is None else asked


def _max_tokens(asked: int | None, space: Space, default_max_tokens: int) -> int:
    room = space.context_tokens - space.prompt_tokens
    if room < (asked or 1):
        answer = f"max_tokens {asked}" if asked else "at least one token of answer"
        raise InvalidRequest(
            f"a prompt of {space.prompt_tokens} tokens and {answer} do not fit the model's context of "
            f"{space.context_tokens} tokens; shorten the prompt or lower max_tokens",
            reason="CONTEXT_EXCEEDED",
            metadata={"prompt_tokens": str(space.prompt_tokens), "context_tokens": str(space.context_tokens)},
        )
    return asked or min(default_max_tokens, room)


def _stop_token_ids(asked: SamplingAsked, eos: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    for token_id in asked.stop_token_ids:
        _check("stop_token_ids", token_id, 0, vocab_size - 1)
    together = tuple(dict.fromkeys((*asked.stop_token_ids, *eos)))
    if len(together) > MAX_STOP_TOKENS:
        raise _out_of_range(
            "stop_token_ids",
            len(asked.stop_token_ids),
            f"at most {MAX_STOP_TOKENS} together with the model's own {len(eos)}",
        )
    return together


def _check(name: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not (math.isfinite(value) and least <= value <= most):
        raise _out_of_range(name, value, f"{least} to {most}")


def _out_of_range(name: str, value: float, allowed: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {value}; it must be {allowed}", reason="SAMPLING_INVALID", metadata={"parameter": name}
    )
