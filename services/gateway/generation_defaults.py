"""What an artifact says about how to generate with it: generation_config.json and config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Self

# Settings that change the tokens and that this system does not apply, each with the value that does nothing.
_NOT_APPLIED: Final[Mapping[str, Any]] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """How to sample when the request does not say; greedy unless the artifact says otherwise.

    Attributes:
        eos_token_ids: Ids that end an answer.
        not_applied: Settings of the artifact that change what it would say and have no counterpart here.

    Raises:
        ValueError: A parameter is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    eos_token_ids: tuple[int, ...] = ()
    not_applied: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.temperature <= 2 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ValueError(f"generation_config.json: a sampling parameter is out of range: {self}")

    @classmethod
    def read(cls, generation_config: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        """Reads both files; the first knows better.

        Its temperature, top_k and top_p count only where it says ``do_sample``. One that samples and names no
        temperature means 1.
        """
        named = _ids(generation_config.get("eos_token_id", config.get("eos_token_id")))
        eos = tuple(token_id for token_id in named if 0 <= token_id < config["vocab_size"])
        rest = tuple(
            name
            for name, neutral in _NOT_APPLIED.items()
            if generation_config.get(name) not in (None, neutral, [], {})
        )
        if not generation_config.get("do_sample"):
            return cls(eos_token_ids=eos, not_applied=rest)
        return cls(
            temperature=float(_value(generation_config, "temperature", 1.0)),
            top_k=int(_value(generation_config, "top_k", 0)),
            top_p=float(_value(generation_config, "top_p", 1.0)),
            eos_token_ids=eos,
            not_applied=rest,
        )


def _value(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    return default if value is None else value


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(dict.fromkeys(value)) if isinstance(value, list) else (value,)
