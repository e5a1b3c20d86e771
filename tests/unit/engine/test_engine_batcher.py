"""Planning a step: decodes always, prompts in chunks and in order of arrival."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from services.engine.batcher import plan
from services.engine.block_pool import BlockPool
from services.engine.sequence import Phase, Sequence
from tests.unit.engine.fakes import BLOCK_BYTES, request


def sequence(prompt_tokens: int, computed: int = 0) -> Sequence:
    asked = request(prompt=range(prompt_tokens))
    pool = BlockPool(BLOCK_BYTES * asked.worst_case_blocks)
    made = Sequence(asked, pool.reserve(BLOCK_BYTES, asked.worst_case_blocks))
    if computed and made.advance(computed):
        made.append(0)
    return made


def test_every_decode_is_in_every_step() -> None:
    """A waiting prompt fills the chunk; decodes come on top of it."""
    decodes = [sequence(5, computed=5) for _ in range(3)]
    long = sequence(1500)
    shares = plan([long, *decodes], chunk_tokens=512, max_batch=8)
    assert [(long, 512), *((d, 1) for d in decodes)] == shares


def test_prompts_share_a_chunk_in_order_of_arrival() -> None:
    """The first prompt's rest, then what fits of the second, then nothing of the third."""
    first, second, third = sequence(600, computed=512), sequence(500), sequence(10)
    shares = plan([first, second, third], chunk_tokens=512, max_batch=8)
    assert [(first, 88), (second, 424)] == shares


def test_a_1500_token_prompt_takes_three_steps() -> None:
    """So a running stream meets at most three long steps, each of one chunk."""
    long, counts = sequence(1500), []
    while long.phase is not Phase.DECODE:
        ((_, count),) = plan([long], chunk_tokens=512, max_batch=8)
        counts.append(count)
        long.advance(count)
    assert [512, 512, 476] == counts


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=12),
    st.integers(1, 128),
    st.integers(1, 8),
)
def test_no_plan_exceeds_its_bounds_or_starves_the_first(
    lengths: list[tuple[int, int]], chunk_tokens: int, max_batch: int
) -> None:
    """Bounds hold, nothing empty is planned, and whoever came first always gets something."""
    sequences = [sequence(length, min(done, length)) for length, done in lengths]
    shares = plan(sequences, chunk_tokens=chunk_tokens, max_batch=max_batch)
    prompts = [share for share in shares if share.sequence.phase is not Phase.DECODE]
    assert sum(share.tokens for share in prompts) <= chunk_tokens
    assert len(shares) <= max_batch
    assert all(1 <= share.tokens <= share.sequence.length - share.sequence.computed for share in shares)
    assert not sequences or sequences[0] is shares[0].sequence
