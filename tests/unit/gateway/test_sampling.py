"""Sampling parameters: every default resolved, everything impossible refused before an engine sees it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.common.completion import Sampling
from services.common.errors import CorruptData, InvalidRequest
from services.common.text.generation_defaults import GenerationDefaults
from services.gateway.sampling import SamplingAsked, Space, resolve

SPACE = Space(prompt_tokens=10, context_tokens=192, vocab_size=512)
GREEDY = GenerationDefaults(eos_token_ids=(0, 2))
WARM = GenerationDefaults(temperature=0.5, top_k=40, top_p=0.75, eos_token_ids=(0, 2))


def test_without_wishes_an_answer_is_greedy() -> None:
    """Greedy, up to the configured length, ended by the model's own tokens, with a seed of our own."""
    sampling = resolve(SamplingAsked(), GREEDY, SPACE, 64)
    assert (
        Sampling(
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            seed=sampling.seed,
            max_tokens=64,
            stop_token_ids=(0, 2),
            ignore_eos=False,
            logprobs=False,
        )
        == sampling
    )
    assert sampling.seed != resolve(SamplingAsked(), GREEDY, SPACE, 64).seed


def test_what_the_artifact_says_stands_where_the_request_says_nothing() -> None:
    """The request comes first, parameter by parameter, and 0 is a choice."""
    sampling = resolve(SamplingAsked(temperature=0.0, top_k=0, seed=0), WARM, SPACE, 64)
    assert (0.0, 0, 0.75, 0) == (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed)
    assert 40 == resolve(SamplingAsked(), WARM, SPACE, 64).top_k


def test_the_default_length_leaves_room_for_the_prompt() -> None:
    """Where the context is nearly full, the default is what is left of it."""
    assert 182 == resolve(SamplingAsked(), GREEDY, SPACE, 512).max_tokens


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens"), [(10, 183), (192, None), (500, None), (192, 1), (1, 2**32 - 1)]
)
def test_what_does_not_fit_the_context_names_both_numbers(prompt_tokens: int, max_tokens: int | None) -> None:
    """Prompt and answer together must fit, and the message says how long they are and how much there is."""
    space = SPACE._replace(prompt_tokens=prompt_tokens)
    with pytest.raises(InvalidRequest, match=rf"\b{prompt_tokens} tokens.*\b192 tokens") as caught:
        resolve(SamplingAsked(max_tokens=max_tokens), GREEDY, space, 64)
    assert "CONTEXT_EXCEEDED" == caught.value.reason


def test_a_full_context_is_fine() -> None:
    """The bound itself is allowed."""
    assert 182 == resolve(SamplingAsked(max_tokens=182), GREEDY, SPACE, 64).max_tokens


def test_stop_tokens_are_joined_with_the_models_own() -> None:
    """Each once, the request's first; none of the model's own where they are to be ignored."""
    asked = SamplingAsked(stop_token_ids=(7, 0, 7))
    assert (7, 0, 2) == resolve(asked, GREEDY, SPACE, 64).stop_token_ids
    ignoring = SamplingAsked(stop_token_ids=(7,), ignore_eos=True)
    sampling = resolve(ignoring, GREEDY, SPACE, 64)
    assert ((7,), True) == (sampling.stop_token_ids, sampling.ignore_eos)


@pytest.mark.parametrize(
    ("wishes", "name"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": 513}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_token_ids": (512,)}, "stop_token_ids"),
        ({"stop_token_ids": tuple(range(65))}, "stop_token_ids"),
        ({"stop_token_ids": tuple(range(3, 67))}, "stop_token_ids"),
    ],
)
def test_what_no_engine_can_do_is_refused_by_name(wishes: dict[str, Any], name: str) -> None:
    """The message names the parameter and its range."""
    with pytest.raises(InvalidRequest, match=f"^{name} is .*; it must be") as caught:
        resolve(SamplingAsked(**wishes), GREEDY, SPACE, 64)
    assert name == caught.value.metadata["parameter"]


@pytest.mark.parametrize(
    "wishes",
    [
        {"temperature": 0},
        {"temperature": 2},
        {"top_p": 1},
        {"top_p": 1e-6},
        {"top_k": 512},
        {"max_tokens": 1},
    ],
)
def test_the_bounds_themselves_are_allowed(wishes: dict[str, Any]) -> None:
    """Ranges include their ends, but for a top_p of 0."""
    resolve(SamplingAsked(**wishes), GREEDY, SPACE, 64)


def test_an_artifact_that_does_not_sample_is_greedy() -> None:
    """Without do_sample its temperature means nothing, as in transformers."""
    defaults = GenerationDefaults.read({"temperature": 0.6, "eos_token_id": [2, 0, 2]}, {"vocab_size": 512})
    assert GenerationDefaults(eos_token_ids=(2, 0)) == defaults


def test_an_artifact_that_samples_says_how() -> None:
    """With do_sample its parameters count; a temperature that it leaves out is 1."""
    read = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1, "num_beams": 1}
    assert GenerationDefaults(
        temperature=1.0, top_k=20, top_p=0.8, eos_token_ids=(2,), not_applied=("repetition_penalty",)
    ) == GenerationDefaults.read(read, {"eos_token_id": 2, "vocab_size": 512})


def test_an_ending_token_outside_the_vocabulary_cannot_come() -> None:
    """Of config.json, where other models' defaults are left standing, it is left out."""
    config = {"eos_token_id": [3, 512, -1], "vocab_size": 512}
    assert (3,) == GenerationDefaults.read({}, config).eos_token_ids


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 9.0}, "temperature is 9.0; write a number from 0 to 2"),
    ({"temperature": math.nan}, "temperature is NaN; write"),
    ({"temperature": "hot"}, 'temperature is "hot"; write'),
    ({"temperature": True}, "temperature is true; write"),
    ({"top_k": -1}, "top_k is -1; write a whole number"),
    ({"top_k": 1.5}, "top_k is 1.5; write"),
    ({"top_p": 0}, "top_p is 0; write"),
    ({"top_p": [1]}, r"top_p is \[1\]; write"),
    ({"do_sample": "yes"}, 'do_sample is "yes"; write true or false'),
    ({"eos_token_id": "x"}, 'eos_token_id is "x"; write a token id'),
    ({"eos_token_id": [3, None]}, r"eos_token_id is \[3, null\]; write"),
    ({"eos_token_id": 999999}, "eos_token_id is 999999; write a token id of this vocabulary, 0 to 511"),
    ({"eos_token_id": [3, -1]}, r"eos_token_id is \[3, -1\]; write"),
]


@pytest.mark.parametrize(("content", "message"), UNUSABLE)
def test_an_artifact_that_cannot_be_generated_with_is_refused(content: dict[str, Any], message: str) -> None:
    """Whether it samples or not; the message names file, field, value and what to write."""
    with pytest.raises(CorruptData, match=rf"^generation_config\.json: {message}.*, or leave the field out"):
        GenerationDefaults.read(content, {"vocab_size": 512})


def test_fields_that_are_null_or_at_their_bounds_are_fine() -> None:
    """Null says nothing, and whole numbers are numbers."""
    content = {"do_sample": True, "temperature": 2, "top_k": None, "top_p": 1, "eos_token_id": [0, 511]}
    expected = GenerationDefaults(temperature=2.0, top_k=0, top_p=1.0, eos_token_ids=(0, 511))
    assert expected == GenerationDefaults.read(content, {"vocab_size": 512})
