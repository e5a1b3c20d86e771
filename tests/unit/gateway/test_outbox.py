"""The outbox: nothing lost, nothing twice, nothing after the end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.completion import FinishReason
from services.gateway.outbox import MAX_PENDING_CHARS, Batch, Ending, Outbox

LENGTH = Ending(FinishReason.LENGTH)
Adds = st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=5).map(tuple), st.text("ab", max_size=3)))


@given(Adds, st.sets(st.integers(0, 20)))
async def test_what_is_added_is_taken_in_order(
    adds: list[tuple[tuple[int, ...], str]], reads: set[int]
) -> None:
    """However far the reader is behind, its batches joined are what was added, and the last has the end."""
    outbox, batches = Outbox(), list[Batch]()
    for place, (token_ids, text) in enumerate(adds):
        outbox.add(token_ids, text, tuple(map(float, token_ids)))
        if place in reads and outbox._news.is_set():
            batches.append(await outbox.take())
    outbox.end(LENGTH)
    batches.append(await outbox.take())
    assert [token_id for token_ids, _ in adds for token_id in token_ids] == [
        token_id for batch in batches for token_id in batch.token_ids
    ]
    assert [batch.token_ids for batch in batches] == [batch.logprobs for batch in batches]
    assert "".join(text for _, text in adds) == "".join(batch.text for batch in batches)
    assert [None] * (len(batches) - 1) + [LENGTH] == [batch.ending for batch in batches]
    assert sum(len(token_ids) for token_ids, _ in adds) == outbox.accepted_tokens


async def test_the_first_end_counts_and_nothing_comes_after_it() -> None:
    """An abort after the end, or text after an abort, changes nothing."""
    outbox = Outbox()
    outbox.add((1,), "a")
    outbox.abort()
    outbox.end(LENGTH)
    outbox.fail(ValueError())
    outbox.add((2,), "b")
    assert Batch((1,), "a", Ending(FinishReason.ABORTED)) == await outbox.take()
    assert 1 == outbox.accepted_tokens


async def test_a_failure_comes_after_what_was_made_before_it() -> None:
    """The reader gets the text first, then the error."""
    outbox = Outbox()
    outbox.add((1,), "a")
    outbox.fail(ValueError("broken"))
    assert Batch((1,), "a", None) == await outbox.take()
    with pytest.raises(ValueError, match="broken"):
        await outbox.take()


async def test_a_writer_waits_while_the_reader_is_too_far_behind() -> None:
    """The bound is in tokens, and taking makes room."""
    outbox = Outbox(max_pending_tokens=3)
    outbox.add((1, 2), "")
    await outbox.room()
    outbox.add((3,), "")
    waiting = asyncio.ensure_future(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await outbox.take()
    await waiting


async def test_a_writer_waits_while_too_much_text_is_pending() -> None:
    """Few tokens can be much text: the bound is in characters too.

    Fault injection: turns red when Outbox.add looks at the tokens alone.
    """
    outbox = Outbox()
    outbox.add((1,), "a" * MAX_PENDING_CHARS)
    waiting = asyncio.ensure_future(outbox.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await outbox.take()
    await waiting


async def test_a_reader_waits_for_news() -> None:
    """An addition of nothing is no news."""
    outbox = Outbox()
    taking = asyncio.ensure_future(outbox.take())
    outbox.add((), "")
    await asyncio.sleep(0)
    assert not taking.done()
    outbox.add((), "a")
    assert "a" == (await taking).text
