"""Planning a step: decodes always, prompts in chunks, models in equal parts, and in each by order of arrival."""

from __future__ import annotations

import collections

import hypothesis.strategies as st
from hypothesis import given

from services.common.watermark import Level
from services.engine.batcher import BACKGROUND_TOKENS, Line, Share, deal, plan
from services.engine.block_pool import BlockPool
from services.engine.sequence import Phase, Sequence
from tests.unit.engine.fakes import BLOCK_BYTES, request


def sequence(prompt_tokens: int, computed: int = 0, max_tokens: int = 4) -> Sequence:
    asked = request(prompt=range(prompt_tokens), max_tokens=max_tokens)
    pool = BlockPool(BLOCK_BYTES * asked.worst_case_blocks)
    made = Sequence(asked, pool.reserve(BLOCK_BYTES, asked.worst_case_blocks))
    if computed and made.advance(computed):
        made.append(0)
    return made


def decodes(count: int) -> list[Sequence]:
    return [sequence(5, computed=5) for _ in range(count)]


def prompts(count: int, tokens: int = 100) -> list[Sequence]:
    return [sequence(tokens) for _ in range(count)]


def of(line: Line, shares: list[Share]) -> list[int]:
    """What the line's sequences get."""
    return [share.tokens for share in shares if share.sequence in line.sequences]


def test_every_decode_is_in_every_step() -> None:
    """A waiting prompt fills the chunk; decodes come on top of it."""
    running, long = decodes(3), sequence(1500)
    shares = plan([Line([*running, long])], chunk_tokens=512, max_batch=8)
    assert [*((each, 1) for each in running), (long, 512)] == shares


def test_half_of_a_chunk_is_for_the_first_and_the_rest_for_those_with_the_least_left() -> None:
    """What the first cannot use goes to the others too, and what they cannot use to the first; all, where it has least.

    Fault injection: turns red when `_chunks` fills prompts in order of arrival.
    """
    first, second, third = sequence(600, computed=512), sequence(500), sequence(10)
    shares = plan([Line([first, second, third])], chunk_tokens=512, max_batch=8)
    assert [(first, 88), (third, 10), (second, 414)] == shares
    shares = plan([Line([second, first, third])], chunk_tokens=512, max_batch=8)
    assert [(second, 414), (third, 10), (first, 88)] == shares
    long, other, short = sequence(1800), sequence(1800), sequence(200)
    assert [(long, 64)] == plan([Line([long, other])], chunk_tokens=64, max_batch=8)
    assert [(long, 32), (short, 32)] == plan([Line([long, short])], chunk_tokens=64, max_batch=8)


def test_above_the_soft_watermark_new_prompts_shrink_and_the_nearest_to_their_end_go_first() -> None:
    """New ones get half of a chunk together; whoever has begun goes by all that is to come of it, its answer too.

    Fault injection: turns red when `_chunks` does not look at the level.
    """
    new = prompts(3)
    assert [100, 100, 56] == of(Line(new), plan([Line(new)], chunk_tokens=256, max_batch=8))
    assert [100, 28] == of(Line(new), plan([Line(new)], chunk_tokens=256, max_batch=8, level=Level.SOFT))
    oldest, talkative, terse = (sequence(300, 10, max_tokens=tokens) for tokens in (500, 400, 1))
    line = Line([oldest, talkative, terse])
    assert [(oldest, 64), (terse, 64)] == plan([line], chunk_tokens=128, max_batch=8, level=Level.SOFT)


def test_above_the_hard_watermark_nothing_new_begins_beside_what_is_under_way() -> None:
    """Decodes and prompts that have begun go on; alone, one new prompt may begin.

    Fault injection: turns red when `_placed` does not look at the level.
    """
    running, begun, new = decodes(2), sequence(100, 16), prompts(2)
    shares = plan([Line([*running, begun, *new])], chunk_tokens=512, max_batch=8, level=Level.HARD)
    assert [(running[0], 1), (running[1], 1), (begun, 84)] == shares
    assert [(new[0], 100)] == plan([Line(new)], chunk_tokens=512, max_batch=8, level=Level.HARD)


def test_a_decode_without_room_waits_for_it() -> None:
    """Its blocks are full: it is left out until it has grown, and others go on."""
    pool = BlockPool(BLOCK_BYTES * 8)
    reservation, asked = pool.reserve(BLOCK_BYTES, 1), request(prompt=range(16), max_tokens=9)
    full, other = Sequence(asked, reservation), sequence(5, computed=5)
    full.cover(16)
    full.advance(16)
    full.append(0)
    assert [(other, 1)] == plan([Line([full, other])], chunk_tokens=8, max_batch=8)
    reservation.grow(1)
    assert [(full, 1), (other, 1)] == plan([Line([full, other])], chunk_tokens=8, max_batch=8)


def test_a_1500_token_prompt_takes_three_steps() -> None:
    """So a running stream meets at most three long steps, each of one chunk."""
    long, counts = sequence(1500), []
    while long.phase is not Phase.DECODE:
        ((_, count),) = plan([Line([long])], chunk_tokens=512, max_batch=8)
        counts.append(count)
        long.advance(count)
    assert [512, 512, 476] == counts


def test_a_thousand_prompts_for_one_model_hold_up_another_models_by_one_step_at_most() -> None:
    """Of places each line gets its part; of two steps one is its own, and what it cannot use goes to the other.

    Fault injection: turns red when plan puts all lines into one.
    """
    busy, calm = Line(prompts(1000)), Line(prompts(1, tokens=300))
    steps = [plan([busy, calm], chunk_tokens=512, max_batch=4, turn=turn) for turn in range(2)]
    assert [([100, 100, 56], []), ([], [256])] == [(of(busy, step), of(calm, step)) for step in steps]
    few = Line(prompts(1, tokens=12))
    assert ([12], [100, 100, 44]) == tuple(
        of(line, plan([busy, few], chunk_tokens=512, max_batch=4, turn=1)) for line in (few, busy)
    )


def test_a_step_of_several_models_has_half_the_prompts() -> None:
    """Their weights are read one after the other, which takes its time; alone, a model has the whole chunk.

    Fault injection: turns red when plan deals the whole chunk whatever lines there are.
    """
    long, other = Line(prompts(1, tokens=600)), Line(decodes(2))
    assert [32] == of(long, plan([long, other], chunk_tokens=64, max_batch=8))
    assert [64] == of(long, plan([long], chunk_tokens=64, max_batch=8))


def test_whoever_has_begun_keeps_its_place() -> None:
    """A new line gets the places that become free, up to its part; no running stream stands still for it."""
    old, new = Line([*decodes(6), *prompts(4)]), Line(prompts(9))
    shares = plan([old, new], chunk_tokens=512, max_batch=6)
    assert ([1] * 6, []) == (of(old, shares), of(new, shares))
    shares = plan([old, new], chunk_tokens=1600, max_batch=8)
    assert ([1] * 6, [100] * 2) == (of(old, shares), of(new, shares))
    shares = plan([old, new], chunk_tokens=1600, max_batch=14)
    assert ([1] * 6 + [100], [100] * 7) == (of(old, shares), of(new, shares))


def test_what_nobody_waits_for_goes_in_slices_beside_what_somebody_waits_for() -> None:
    """A warm-up's prompt is cut into slices while a live model has work, and into whole chunks when none has.

    Fault injection: turns red when plan does not slice.
    """
    live, warming = Line(decodes(2)), Line(prompts(2, tokens=600), is_background=True)
    beside = plan([live, warming], chunk_tokens=512, max_batch=8)
    assert ([1, 1], [BACKGROUND_TOKENS]) == (of(live, beside), of(warming, beside))
    assert [512] == of(warming, plan([warming], chunk_tokens=512, max_batch=8))


def test_a_place_that_two_lines_want_goes_to_one_after_the_other() -> None:
    """With one place, or one token, in all, ten steps serve each of two lines five times."""
    lines = [Line(prompts(2)), Line(prompts(2))]
    served = collections.Counter[int]()
    for turn in range(10):
        (share,) = plan(lines, chunk_tokens=1, max_batch=1, turn=turn)
        served[next(i for i, line in enumerate(lines) if share.sequence in line.sequences)] += 1
    assert {0: 5, 1: 5} == served


@given(st.integers(0, 60), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 9))
def test_parts_are_equal_as_far_as_they_are_wanted(total: int, wanted: list[int], turn: int) -> None:
    """All is dealt that is wanted, and nobody who wants more has less, by over one, than anybody else."""
    given_ = deal(total, wanted, turn)
    assert min(total, sum(wanted)) == sum(given_)
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    hungry = [got for got, want in zip(given_, wanted, strict=True) if got < want]
    assert not hungry or max(given_) <= min(hungry) + 1


Lengths = list[tuple[int, int]]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=6), max_size=3
    ),
    st.integers(1, 128),
    st.integers(1, 8),
    st.integers(0, 9),
)
def test_no_plan_exceeds_its_bounds_or_leaves_any_of_it_to_nobody(
    lengths: list[Lengths], chunk_tokens: int, max_batch: int, turn: int
) -> None:
    """Bounds hold, nothing empty is planned, decodes come, and no prompt waits while there is room for it."""
    left, lines = max_batch, list[Line]()
    for line in lengths:
        begun = min(left, len(line))
        left -= begun
        computed = [min(length, done) if i < begun else 0 for i, (length, done) in enumerate(line)]
        made = [sequence(length, done) for (length, _), done in zip(line, computed, strict=True)]
        lines.append(Line(sorted(made, key=lambda each: each.phase is Phase.WAITING)))
    shares = plan(lines, chunk_tokens=chunk_tokens, max_batch=max_batch, turn=turn)
    prompted = sum(share.tokens for share in shares if share.sequence.phase is not Phase.DECODE)
    everyone = [each for line in lines for each in line.sequences]
    planned = {share.sequence for share in shares}
    assert prompted <= chunk_tokens
    assert len(planned) == len(shares) <= max_batch
    assert all(1 <= share.tokens <= share.sequence.length - share.sequence.computed for share in shares)
    assert all(each in planned for each in everyone if each.phase is Phase.DECODE)
    most = chunk_tokens if len(lines) == 1 else (chunk_tokens + 1) // 2
    assert most == prompted or (most >= prompted and planned == set(everyone)) or len(shares) == max_batch
