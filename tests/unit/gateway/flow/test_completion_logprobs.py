"""Logprobs on their way through a gateway: each beside its own token, however the text is cut and held back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from services.common.completion import Chunk, Completion, FinishReason
from services.gateway.ports import EngineMessage
from services.gateway.sampling import SamplingAsked

if TYPE_CHECKING:
    from tests.unit.gateway.flow.conftest import Flow

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
ASKED = SamplingAsked(logprobs=True)


async def told(flow: Flow, text: str, finish: FinishReason | None = None) -> EngineMessage:
    """An engine's message of `text`, in which each token's logprob is minus its id."""
    message = await flow.says(text, finish)
    return message._replace(logprobs=tuple(-float(token_id) for token_id in message.token_ids))


def are_beside_their_tokens(chunks: list[Chunk]) -> bool:
    return all(chunk.logprobs == tuple(-float(each) for each in chunk.token_ids) for chunk in chunks)


async def test_logprobs_come_with_their_tokens(flow: Flow) -> None:
    """In every chunk, also while the text of its tokens is held back for a stop string that may come.

    Fault injection: turns red when Outbox.take keeps the logprobs for a later batch.
    """
    gate = asyncio.Event()
    flow.engines.scripts.append(
        [await told(flow, "AB"), gate, await told(flow, "CD"), await told(flow, "", LENGTH)]
    )
    chunks: list[Chunk] = []
    async for chunk in flow.stream(stops=("BCX",), sampling=ASKED):
        chunks.append(chunk)
        gate.set()
    assert are_beside_their_tokens(chunks)
    assert ("A", "ABCD") == (chunks[0].text, "".join(chunk.text for chunk in chunks))
    assert 2 == len(chunks[0].logprobs)
    assert [True] == [request.sampling.logprobs for request in flow.engines.asked]


async def test_tokens_behind_a_stop_string_take_their_logprobs_along(flow: Flow) -> None:
    """They are no part of the answer, and neither are their logprobs.

    Fault injection: turns red when `_relay` hands over all logprobs of a message.
    """
    flow.engines.scripts.append([await told(flow, "ABCDEFGHIJKLM", LENGTH)])
    chunks = await flow.collect(stops=("DEF",), sampling=ASKED)
    answer = Completion.of(chunks)
    letters = [await flow.ids(letter) for letter in "ABCDEF"]
    assert (sum(letters, ()), STOP) == (answer.token_ids, answer.finish_reason)
    assert are_beside_their_tokens(chunks)
    assert len(answer.token_ids) == len(answer.logprobs)


async def test_a_reader_that_is_behind_gets_all_of_them(flow: Flow) -> None:
    """What is joined into one chunk keeps its order."""
    messages = [await told(flow, letter) for letter in "ABCDE"]
    flow.engines.scripts.append([*messages, await told(flow, "F", LENGTH)])
    chunks = await flow.collect(sampling=ASKED)
    assert are_beside_their_tokens(chunks)
    assert 6 == sum(len(chunk.logprobs) for chunk in chunks)
