"""What is expected of the next answer: bounded by what was heard, and no guess where nothing was."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.common.ids import ArtifactId
from services.engine.answer_length import AnswerLength, AnswerLengths


def heard(answers: list[tuple[int, bool]]) -> AnswerLength:
    length = AnswerLength()
    for tokens, is_whole in answers:
        length.hear(tokens, is_whole=is_whole)
    return length


def test_nothing_is_expected_of_few_answers() -> None:
    """Sixteen are the fewest, and a change is told."""
    length = AnswerLength()
    assert [False] * 15 == [length.hear(10, is_whole=True) for _ in range(15)]
    assert length.expected is None
    assert length.hear(10, is_whole=True)
    assert 10 == length.expected


def test_three_of_four_answers_are_no_longer_than_expected() -> None:
    """Of lengths 1 to 96, 72."""
    assert 72 == heard([(tokens, True) for tokens in range(1, 97)]).expected


def test_answers_that_are_cut_off_tell_only_that_they_become_longer() -> None:
    """Where all reach their max_tokens, nothing is known; where half do, the others say more.

    Fault injection: turns red when `_estimate` takes answers that were cut off for whole ones.
    """
    assert heard([(100, False)] * 64).expected is None
    mixed = heard([(10, False)] * 32 + [(50, True)] * 24 + [(60, True)] * 8)
    assert 50 == mixed.expected


def test_only_the_last_answers_count() -> None:
    """A model that has begun to answer at length is expected to."""
    assert 400 == heard([(5, True)] * 300 + [(400, True)] * 256).expected


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=400))
def test_what_is_expected_was_heard(answers: list[tuple[int, bool]]) -> None:
    """It is the length of one of the last whole answers, or nothing."""
    expected = heard(answers).expected
    assert expected is None or expected in {max(1, tokens) for tokens, is_whole in answers if is_whole}


def test_models_are_told_apart_and_forgotten() -> None:
    """One model's answers say nothing of another's; one that is gone begins anew."""
    lengths, one, other = AnswerLengths(), ArtifactId("a"), ArtifactId("b")
    for _ in range(16):
        lengths.hear(one, 7, is_whole=True)
    assert (7, 0) == (lengths.expected(one), lengths.expected(other))
    lengths.forget(one)
    assert 0 == lengths.expected(one)
