"""What a model is warmed up with: its own requests, and the shapes that steps have in this engine."""

from __future__ import annotations

import pytest

from services.common.text.representative_prompts import RepresentativePrompt
from services.engine.warm_plan import FEW_TOKENS, MOST_ROWS, Shapes, WarmRound, plan

SHAPES = Shapes(chunk_tokens=64, max_batch=256, max_tokens=100, sizes={})


def sizes(rounds: list[WarmRound]) -> list[tuple[int, int, int, bool]]:
    """Of every round: requests, prompt tokens and answer of the first, whether it is needed."""
    return [
        (
            len(each.requests),
            len(each.requests[0].prompt),
            each.requests[0].sampling.max_tokens,
            each.is_needed,
        )
        for each in rounds
    ]


def test_a_fresh_engine_warms_up_one_row_eight_and_a_chunk() -> None:
    """Where nothing has been computed there is nothing to go by."""
    assert [(1, 2, 2, True), (8, 1, 3, False), (1, 64, 1, False)] == sizes(plan((), SHAPES))


@pytest.mark.parametrize(
    ("counted", "max_batch", "rows"),
    [
        ({1: 900, 2: 5, 3: 7, 5: 1, 6: 9, 7: 3}, 256, [6, 3, 2]),
        ({1: 900}, 256, [8]),
        ({MOST_ROWS + 1: 900, 4: 1}, 256, [4]),
        ({14: 10, 4: 1}, 12, [4]),
        ({}, 4, []),
    ],
)
def test_batches_are_those_that_steps_have_most(
    counted: dict[int, int], max_batch: int, rows: list[int]
) -> None:
    """The three commonest, none larger than the engine computes, and none so large that it computes no other way.

    Fault injection: turns red when plan does not look at what was counted.
    """
    rounds = plan((), SHAPES._replace(sizes=counted, max_batch=max_batch))
    assert rows == [len(each.requests) for each in rounds[1:-1]]


def test_an_artifacts_own_requests_come_together_and_first() -> None:
    """Right after the shortest, each as long as what is expected of it; what does not fit here is left out."""
    prompts = (
        RepresentativePrompt(1, (5, 6)),
        RepresentativePrompt(2, (7,) * 98),
        RepresentativePrompt(3, (8,), expected_token_ids=(1, 2, 3, 4, 5)),
    )
    own = plan(prompts, SHAPES)[1]
    assert own.is_needed
    assert [(1, (5, 6), FEW_TOKENS, ()), (3, (8,), 5, (1, 2, 3, 4, 5))] == [
        (each.number, each.prompt, each.sampling.max_tokens, each.expected) for each in own.requests
    ]


@pytest.mark.parametrize(("max_tokens", "chunk"), [(100, 64), (20, 19), (1, 1)])
def test_a_chunk_is_no_longer_than_the_context(max_tokens: int, chunk: int) -> None:
    """Nor than the arena, and never empty."""
    assert (1, chunk, 1, False) == sizes(plan((), SHAPES._replace(max_tokens=max_tokens)))[-1]
