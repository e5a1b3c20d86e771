"""What an artifact says about how to generate with it: generation_config.json and config.json."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from services.common.errors import CorruptData

_FILE: Final = "generation_config.json"
_SHOWN: Final = 100  # characters of a value that a message repeats


class _Parameter(NamedTuple):
    default: float  # where the file samples and does not name it; a whole number's field takes no other
    least: float
    most: float
    words: str


_PARAMETERS: Final[Mapping[str, _Parameter]] = {
    "temperature": _Parameter(1.0, 0, 2, "a number from 0 to 2"),
    "top_k": _Parameter(0, 0, math.inf, "a whole number from 0 (no bound)"),
    "top_p": _Parameter(1.0, math.ulp(0.0), 1, "a number over 0 and at most 1"),
}

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
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    eos_token_ids: tuple[int, ...] = ()
    not_applied: tuple[str, ...] = ()

    @classmethod
    def read(cls, generation_config: Mapping[str, Any], config: Mapping[str, Any]) -> Self:
        """Reads both files; the first knows better.

        Its temperature, top_k and top_p count only where it says ``do_sample``, and are looked at in any case. One
        that samples and names no temperature means 1.

        Args:
            generation_config: What generation_config.json holds; {} if there is none.
            config: Of the model; its vocab_size bounds token ids.

        Raises:
            CorruptData: A field is of another kind or out of range; names file, field, value and what to write.
        """
        sampled = {name: _parameter(generation_config, name) for name in _PARAMETERS}
        if not _is_sampling(generation_config):
            sampled = {}
        return cls(
            **sampled,
            eos_token_ids=_eos(generation_config, config),
            not_applied=tuple(
                name
                for name, neutral in _NOT_APPLIED.items()
                if generation_config.get(name) not in (None, neutral, [], {})
            ),
        )


def _parameter(generation_config: Mapping[str, Any], name: str) -> Any:
    default, least, most, words = _PARAMETERS[name]
    value = generation_config.get(name)
    if value is None:
        return default
    kinds = (int,) if isinstance(default, int) else (int, float)
    if type(value) not in kinds or not least <= value <= most:  # NaN is within nothing; true is no number
        raise _unusable(_FILE, name, value, words)
    return type(default)(value)


def _is_sampling(generation_config: Mapping[str, Any]) -> bool:
    value = generation_config.get("do_sample")
    if value is not None and type(value) is not bool:
        raise _unusable(_FILE, "do_sample", value, "true or false")
    return bool(value)


def _eos(generation_config: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids that end an answer; of config.json, where defaults of other vocabularies are left standing, those in it."""
    vocab_size = config["vocab_size"]
    if "eos_token_id" in generation_config:
        ids = _ids(_FILE, generation_config)
        if not all(0 <= each < vocab_size for each in ids):
            words = f"a token id of this vocabulary, 0 to {vocab_size - 1}, or a list of such"
            raise _unusable(_FILE, "eos_token_id", generation_config["eos_token_id"], words)
        return ids
    return tuple(each for each in _ids("config.json", config) if 0 <= each < vocab_size)


def _ids(file: str, content: Mapping[str, Any]) -> tuple[int, ...]:
    value = content.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    if value is None:
        return ()
    if not all(type(each) is int for each in ids):
        raise _unusable(file, "eos_token_id", value, "a token id or a list of token ids")
    return tuple(dict.fromkeys(ids))


def _unusable(file: str, name: str, value: Any, words: str) -> CorruptData:
    return CorruptData(
        f"{file}: {name} is {str(json.dumps(value))[:_SHOWN]}; write {words}, or leave the field out",
        reason="TEXT_FILE_UNREADABLE",
    )
