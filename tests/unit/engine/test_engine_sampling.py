"""Choosing the next token: greedy, and by a seeded generator that no batch can disturb."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis.extra.numpy import arrays
from structlog.testing import capture_logs

from services.common.errors import InternalError
from services.engine.sampling import NOT_FINITE, Choice, Draw, Floats, choose, uniform
from services.engine.sequence import Sampling

LOGITS = arrays(np.float32, st.integers(1, 400), elements=st.floats(-20, 20, width=32))


def sampling(**changes: float) -> Sampling:
    return Sampling(**{"max_tokens": 1, "temperature": 1.0, **changes})  # type: ignore[arg-type]


def chosen(logits: Floats, rules: Sampling, position: int) -> int:
    """The token that one row gives."""
    [choice] = choose(logits[None], [Draw(rules, position)])
    assert isinstance(choice, Choice), choice
    return choice.token


def kept(logits: Floats, rules: Sampling) -> set[int]:
    """What top_k and then top_p keep, by the definition: sorted, cut, cut again; of one only, the greatest logit."""
    if rules.top_k == 1:
        return {int(logits.argmax())}
    weights = np.exp((logits - logits.max()) / np.float32(rules.temperature)).astype(np.float64)
    order = np.argsort(-weights, kind="stable")[: rules.top_k or len(weights)]
    mass = weights[order].cumsum()
    return set(order[: int(np.searchsorted(mass, rules.top_p * mass[-1] * (1 + 1e-6))) + 1].tolist())


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    """Two equal logits are no reason for two answers."""
    assert 1 == chosen(np.array([0, 3, 3, 1], np.float32), sampling(temperature=0), 5)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_a_fault(broken: float) -> None:
    """A broken number is told, not sampled around."""
    [failure] = choose(np.array([[0, broken, 1]], np.float32), [Draw(sampling(temperature=0), 5)])
    assert isinstance(failure, InternalError)
    assert NOT_FINITE == failure.reason


@given(LOGITS, st.integers(0, 2**64 - 1), st.integers(1, 8192), st.integers(0, 50), st.floats(0.01, 1))
@example(np.array([0, 6.8e-34], np.float32), 0, 1, 1, 1.0)  # logits that differ, of one weight
@settings(deadline=None)
def test_only_what_top_k_and_top_p_keep_is_chosen(
    logits: Floats, seed: int, position: int, top_k: int, top_p: float
) -> None:
    """Whatever the seed, the choice lies in the set that the definition gives."""
    rules = sampling(seed=seed, top_k=min(top_k, len(logits)), top_p=top_p, temperature=0.7)
    assert chosen(logits, rules, position) in kept(logits, rules)


def test_a_choice_depends_on_seed_and_position_alone() -> None:
    """Same state, same token; another seed or position, in the long run, another one."""
    logits = np.zeros(50_000, np.float32)
    first = chosen(logits, sampling(seed=7), 100)
    assert first == chosen(logits.copy(), sampling(seed=7), 100)
    assert first != chosen(logits, sampling(seed=8), 100)
    assert first != chosen(logits, sampling(seed=7), 101)


def test_frequencies_follow_the_probabilities() -> None:
    """At temperature 1 the softmax of the logits is what comes out."""
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(probabilities).astype(np.float32)
    drawn = np.bincount([chosen(logits, sampling(seed=s), 3) for s in range(4000)], minlength=4) / 4000
    assert np.abs(probabilities - drawn).max() < 0.03


def test_a_flat_distribution_is_cut_where_top_p_says() -> None:
    """The search for the end of top_p goes on past its first look, without sorting everything at once."""
    logits = np.zeros(10_000, np.float32)
    ids = {chosen(logits, sampling(seed=s, top_p=0.25), 1) for s in range(2000)}
    assert max(ids) < 2500
    assert len(ids) > 1000


@pytest.mark.parametrize("temperature", [1e-45, 1e-6, 1e-4, 2.0])
def test_every_allowed_temperature_works(temperature: float) -> None:
    """The coldest are greedy; none overflows."""
    logits = np.array([-3e4, 1, 5, 3e4], np.float32)
    assert 3 == chosen(logits, sampling(temperature=temperature), 1)


def test_the_last_token_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's greatest number falls on the last token, not past it."""
    monkeypatch.setattr("services.engine.sampling.uniform", lambda _seed, _position: 1 - 2**-53)
    for size in (1, 5, 256, 257, 1000):
        assert size - 1 == chosen(np.zeros(size, np.float32), sampling(), 1)


def test_the_generator_is_philox() -> None:
    """The first numbers of numpy's Philox, so that another implementation can reproduce an answer."""
    generator = np.random.Generator(np.random.Philox(key=np.array([7, 0], np.uint64), counter=3))
    assert generator.random() == uniform(7, 3)


RULES = st.builds(
    Sampling,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.1, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.booleans(),
)


@given(
    arrays(
        np.float32, st.tuples(st.integers(1, 9), st.integers(41, 700)), elements=st.floats(-20, 20, width=32)
    ),
    st.data(),
)
@settings(deadline=None)
def test_a_row_is_chosen_from_as_if_it_were_alone(logits: Floats, data: st.DataObject) -> None:
    """Token and bits of the logprob, whatever rows are above and below it, and whatever those ask."""
    draws = [Draw(data.draw(RULES), position) for position in range(len(logits))]
    alone = [choose(row[None].copy(), [draw])[0] for row, draw in zip(logits, draws, strict=True)]
    assert alone == choose(logits, draws)


@given(LOGITS, st.sampled_from([0.0, 0.5, 2.0]), st.integers(0, 99))
@settings(deadline=None)
def test_a_logprob_is_of_the_models_own_distribution(logits: Floats, temperature: float, seed: int) -> None:
    """The softmax in float64, whatever temperature, top_k and top_p make of it for the choice; a float32, at most 0."""
    rules = sampling(temperature=temperature, seed=seed, top_k=min(5, len(logits)), top_p=0.8, logprobs=True)
    [choice] = choose(logits[None], [Draw(rules, 3)])
    assert isinstance(choice, Choice)
    assert choice.logprob is not None
    wide = logits.astype(np.float64)
    expected = wide[choice.token] - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    assert pytest.approx(expected, rel=2e-6, abs=2e-6) == choice.logprob
    assert choice.logprob <= 0
    assert float(np.float32(choice.logprob)) == choice.logprob


def test_no_logprob_is_computed_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's wish costs a row nothing.

    Fault injection: turns red when `_choose` always computes it.
    """
    asked: list[int] = []

    def noted(_row: Floats, token: int) -> float:
        asked.append(token)
        return -1.0

    monkeypatch.setattr("services.engine.sampling._logprob", noted)
    logits = np.eye(2, dtype=np.float32)
    draws = [Draw(sampling(temperature=0), 1), Draw(sampling(temperature=0, logprobs=True), 1)]
    assert [Choice(0), Choice(1, -1.0)] == choose(logits, draws)
    assert [1] == asked


def test_s_g1_a_choice_that_fails_is_its_own_rows_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in one row's sampling, whatever it is: the others get their tokens.

    Fault injection: turns red when `_try` lets what `_choose` raises pass.
    """

    def fail(*_: object) -> int:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr("services.engine.sampling._sampled", fail)
    logits = np.eye(3, dtype=np.float32)
    rules = [sampling(temperature=0), sampling(temperature=1), sampling(temperature=0)]
    with capture_logs() as logs:
        first, failure, last = choose(logits, [Draw(each, 1) for each in rules])
    assert [Choice(0), Choice(2)] == [first, last]
    assert isinstance(failure, InternalError)
    assert "injected" not in failure.message
    assert ["choice_failed"] == [each["event"] for each in logs]


def test_no_token_without_weight_is_drawn() -> None:
    """The greatest number of the generator, where only the first of many tokens has any weight."""
    logits = np.full(1000, -1e5, np.float32)
    logits[[3, 300]] = 0
    assert {3, 300} == {chosen(logits, sampling(seed=seed), 1) for seed in range(60)}
