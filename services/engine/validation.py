"""What a request may ask. Everything is checked before the engine sees it: a bad value harms its own request only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence as Ordered
from typing import Final, NoReturn, TypeVar

from services.common.auth.principal import MAX_NAME_CHARS
from services.common.errors import InvalidRequest
from services.common.ids import RequestId
from services.engine.sequence import Sampling, TokenRequest

MAX_TEMPERATURE: Final = 2.0
MAX_STOP_TOKENS: Final = 64
MAX_REQUEST_ID_CHARS: Final = 128
MAX_CACHE_SALT_BYTES: Final = 256

N = TypeVar("N", int, float)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AskedRequest:
    """A request as it came over the wire; None is a scalar that was not set."""

    request_id: str
    prompt: Ordered[int]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    max_tokens: int | None
    stop_token_ids: Ordered[int]
    logprobs: bool = False
    cache_salt: bytes = b""
    tenant: str = ""


def validate(
    asked: AskedRequest, *, vocab_size: int, max_context_tokens: int, deadline: float = math.inf
) -> TokenRequest:
    """The request as the engine computes it.

    Args:
        asked: Anything at all.
        vocab_size: The model's.
        max_context_tokens: Most tokens of prompt and answer together.
        deadline: time.monotonic() after which nobody wants the answer.

    Raises:
        InvalidRequest: It can never work; the message names the field and its range.
    """
    if not 1 <= len(asked.request_id) <= MAX_REQUEST_ID_CHARS:
        _refuse("request_id", f"{len(asked.request_id)} characters", f"1 to {MAX_REQUEST_ID_CHARS}")
    _check_ids("prompt_token_ids", asked.prompt, vocab_size)
    if not asked.prompt:
        _refuse("prompt_token_ids", "empty", "at least one id")
    if len(asked.cache_salt) > MAX_CACHE_SALT_BYTES:
        _refuse("cache_salt", f"{len(asked.cache_salt)} bytes", f"at most {MAX_CACHE_SALT_BYTES}")
    if len(asked.tenant) > MAX_NAME_CHARS:
        _refuse("tenant", f"{len(asked.tenant)} characters", f"at most {MAX_NAME_CHARS}")
    sampling = _sampling(asked, vocab_size)
    if len(asked.prompt) + sampling.max_tokens > max_context_tokens:
        raise InvalidRequest(
            f"{len(asked.prompt)} prompt tokens and max_tokens {sampling.max_tokens} exceed the context of "
            f"{max_context_tokens}; shorten the prompt or ask for fewer tokens",
            reason="CONTEXT_EXCEEDED",
            metadata={"max_context_tokens": str(max_context_tokens)},
        )
    return TokenRequest(
        id=RequestId(asked.request_id),
        prompt=asked.prompt,
        sampling=sampling,
        deadline=deadline,
        cache_salt=asked.cache_salt,
        tenant=asked.tenant,
    )


def _sampling(asked: AskedRequest, vocab_size: int) -> Sampling:
    top_p = _within("top_p", asked.top_p, 0.0, 1.0)
    if top_p == 0:
        _refuse("top_p", 0, "over 0 and up to 1")
    _check_ids("stop_token_ids", asked.stop_token_ids, vocab_size)
    if len(asked.stop_token_ids) > MAX_STOP_TOKENS:
        _refuse("stop_token_ids", f"{len(asked.stop_token_ids)} ids", f"at most {MAX_STOP_TOKENS}")
    return Sampling(
        temperature=_within("temperature", asked.temperature, 0.0, MAX_TEMPERATURE),
        top_k=_within("top_k", asked.top_k, 0, vocab_size),
        top_p=top_p,
        seed=_within("seed", asked.seed, 0, 2**64 - 1),
        max_tokens=_within("max_tokens", asked.max_tokens, 1, 2**31 - 1),
        stop_token_ids=frozenset(asked.stop_token_ids),
        logprobs=asked.logprobs,
    )


def _within(field: str, value: N | None, least: N, most: N) -> N:
    if value is None:
        _refuse(f"sampling.{field}", "not set", f"{least} to {most}")
    if not least <= value <= most:  # NaN is within nothing
        _refuse(f"sampling.{field}", value, f"{least} to {most}")
    return value


def _check_ids(field: str, ids: Ordered[int], vocab_size: int) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        _refuse(field, f"id {wrong}", f"0 to {vocab_size - 1}")


def _refuse(field: str, value: object, allowed: str) -> NoReturn:
    raise InvalidRequest(
        f"{field} is {value}; allowed: {allowed}", reason="INVALID_FIELD", metadata={"field": field}
    )
