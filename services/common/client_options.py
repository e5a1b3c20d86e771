"""What may be said about a completion, and what is refused of it before anything is sent."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict, cast

from services.common.errors import InvalidRequest


class Options(TypedDict, total=False):
    """What may be said about a completion; what is left out, or None, is the server's choice.

    `timeout_s` is for the whole answer, tries included. The rest is described in inference.proto and types.proto.
    """

    request_id: str
    model: str
    cohort: str
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: bool
    stop: Sequence[str]
    cache_salt: str
    timeout_s: float | None


class _Count(NamedTuple):
    """Whole numbers that the wire carries; the server may take fewer."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"a whole number, {self.least} to {self.most}"

    def allows(self, value: Any) -> bool:
        is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return is_whole and self.least <= int(value) <= self.most


class _Number(NamedTuple):
    """Numbers over or at a bound."""

    least: float
    most: float
    bounds: str

    def __str__(self) -> str:
        return f"a number, {self.bounds}"

    def allows(self, value: Any) -> bool:
        is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
        return is_real and math.isfinite(value) and self.least <= float(value) <= self.most


_TOKEN_ID: Final = _Count(0, 2**32 - 1)
_ALLOWED: Final[Mapping[str, _Count | _Number]] = {
    "temperature": _Number(0, 2, "0 to 2"),
    "top_p": _Number(math.ulp(0), 1, "over 0 and at most 1"),
    "top_k": _Count(0, 2**32 - 1),
    "max_tokens": _Count(1, 2**32 - 1),
    "seed": _Count(0, 2**64 - 1),
    "timeout_s": _Number(0, 1e9, "seconds, 0 to 1,000,000,000"),
}
_FLAGS: Final = ("ignore_eos", "logprobs")
_TEXTS: Final = ("request_id", "model", "cohort", "cache_salt")


def checked(options: Options) -> Options:
    """The options that say something, each as the wire can carry it.

    Raises:
        TypeError: There is no such option.
        InvalidRequest: One has another type or is out of bounds; the message says which are allowed.
    """
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}; see {__name__}.Options")
    said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if isinstance(said.get("stop"), str):
        said["stop"] = (said["stop"],)
    for name, allowed in _ALLOWED.items():
        if name in said and not allowed.allows(said[name]):
            raise _refused(name, said[name], str(allowed))
    for name in said.keys() & set(_FLAGS):
        if not isinstance(said[name], bool):
            raise _refused(name, said[name], "True or False")
    for name in said.keys() & set(_TEXTS):
        check_text(name, said[name])
    for text in _listed("stop", said.get("stop", ()), "a list of texts"):
        check_text("stop", text)
    check_token_ids("stop_token_ids", said.get("stop_token_ids", ()))
    return cast("Options", said)


def check_token_ids(name: str, token_ids: Any) -> None:
    """Raises InvalidRequest unless they are a list of whole numbers that may be token ids."""
    for token_id in _listed(name, token_ids, f"a list of token ids, each {_TOKEN_ID}"):
        if not _TOKEN_ID.allows(token_id):
            raise _refused(name, token_id, f"a list of token ids, each {_TOKEN_ID}")


def check_text(name: str, text: Any) -> None:
    """Raises InvalidRequest unless it is a text that UTF-8 can write."""
    if not isinstance(text, str):
        raise _refused(name, text, "a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{name} has half a character in it; it must be Unicode", reason="NOT_UNICODE"
        ) from None


def check_messages(messages: Any) -> None:
    """Raises InvalidRequest unless each is a mapping with a text "role" and a text "content"."""
    for message in _listed("messages", messages, 'a list of mappings with a "role" and a "content"'):
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise _refused("messages", message, 'a list of mappings with a "role" and a "content"')
        check_text("role", message["role"])
        check_text("content", message["content"])


def _listed(name: str, values: Any, allowed: str) -> Collection[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        raise _refused(name, values, allowed)
    return values


def _refused(name: str, value: Any, allowed: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {repr(value)[:80]}; it must be {allowed}",
        reason="OPTION_INVALID",
        metadata={"parameter": name},
    )
