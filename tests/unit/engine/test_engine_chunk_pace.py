"""How many tokens of prompts a step has that running answers wait for: fewer after a long one, more where there is room."""

from __future__ import annotations

import asyncio

import hypothesis.strategies as st
from hypothesis import given

from services.common.kv import BLOCK_TOKENS
from services.engine.arena import Arena
from services.engine.batcher import Line, plan
from services.engine.chunk_pace import ChunkPace
from services.engine.engine import Engine
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request
from tests.unit.engine.test_engine_batcher import decodes, of, prompts, sequence

BOUND_S = 0.2


def paced(most_tokens: int, token_s: float, steps: int, decode_s: float = 0.01) -> list[float]:
    """Seconds that steps take where each token of a prompt takes `token_s`, beside one decode."""
    pace, took = ChunkPace(most_tokens, BOUND_S), list[float]()
    for _ in range(steps):
        took.append(decode_s + pace.tokens * token_s)
        pace.hear(took[-1], pace.tokens, 1)
    return took


def test_a_slow_model_keeps_to_the_bound_after_a_few_steps() -> None:
    """At 5 ms a token 64 of them take 330 ms: all steps but one in a few stay below the bound, and none is wasted.

    Fault injection: turns red when `hear` halves nothing.
    """
    took = paced(64, 0.005, 40)
    assert took[0] > BOUND_S
    assert [] == [seconds for seconds in took[1:] if seconds > BOUND_S]
    assert min(took) > BOUND_S / 4


def test_a_fast_model_has_all_of_its_chunk() -> None:
    """At 0.5 ms a token nothing is held back, and one long step costs a few blocks for a few steps.

    Fault injection: turns red when `hear` adds nothing.
    """
    assert {0.01 + 64 * 0.0005} == set(paced(64, 0.0005, 20))
    pace = ChunkPace(64, BOUND_S)
    pace.hear(1.0, 64, 4)
    given_tokens = [pace.tokens]
    for _ in range(3):
        pace.hear(0.02, pace.tokens, 4)
        given_tokens.append(pace.tokens)
    assert [32, 48, 64, 64] == given_tokens


@given(st.integers(1, 512), st.lists(st.tuples(st.floats(0, 9), st.integers(0, 512), st.integers(0, 99))))
def test_there_is_always_a_block_for_a_prompt_and_never_more_than_a_chunk(
    most_tokens: int, steps: list[tuple[float, int, int]]
) -> None:
    """Whatever steps took: nobody starves, as decodes alone may take longer than the bound."""
    pace = ChunkPace(most_tokens, BOUND_S)
    for seconds, prompt_tokens, decoding in steps:
        pace.hear(seconds, min(prompt_tokens, most_tokens), decoding)
        assert min(BLOCK_TOKENS, most_tokens) <= pace.tokens <= most_tokens


def test_steps_of_prompts_alone_or_decodes_alone_say_nothing() -> None:
    """Nobody waits for the former, and the latter cannot be made shorter."""
    pace = ChunkPace(64, BOUND_S)
    pace.hear(5.0, 64, 0)
    pace.hear(5.0, 0, 30)
    assert 64 == pace.tokens


def test_only_steps_with_decodes_are_held_back() -> None:
    """Prompts alone have the whole chunk; beside decodes what the pace says; of two models the less of both bounds.

    Fault injection: turns red when `plan` does not look for decodes, or leaves `beside_tokens` out.
    """
    alone, beside = Line(prompts(2)), Line([*decodes(2), sequence(100)])
    assert [64] == of(alone, plan([alone], chunk_tokens=64, max_batch=8, beside_tokens=16))
    assert [1, 1, 16] == of(beside, plan([beside], chunk_tokens=64, max_batch=8, beside_tokens=16))
    both = plan([alone, beside], chunk_tokens=64, max_batch=8, beside_tokens=48)
    assert 2 + 32 == sum(share.tokens for share in both)


async def test_an_engine_whose_steps_take_too_long_computes_fewer_tokens_of_prompts_beside_an_answer() -> (
    None
):
    """A prompt of 200 tokens comes while an answer runs, and every step is too long: 64, then 32, then 16 at a time.

    Fault injection: turns red when StepLoop does not tell the pace, or the stepper does not ask it.
    """
    gate = Gate()
    model = CountingModel(gate)
    made = generation(model)
    arena = Arena(64 * BLOCK_BYTES)
    async with (
        Engine(arena, chunk_tokens=64, max_batch=8, max_step_s=1e-9) as engine,
        engine.run(made, request("runs", prompt=(1, 2), max_tokens=60)) as answer,
    ):
        await asyncio.to_thread(gate.reached.acquire)
        async with engine.run(made, request("comes", prompt=(5,) * 200, max_tokens=1)) as other:
            gate.open(100)
            for stream in (answer, other):
                async for _ in stream:
                    pass
    sizes = [len(step.token_ids) for step in model.steps]
    assert [2, 1 + 64, 1 + 32, *[1 + 16] * 6, 1 + 8, 1] == sizes[:11]
