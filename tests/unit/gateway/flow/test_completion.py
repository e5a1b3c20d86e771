"""The flow of a request that reaches its end: chunks, stop strings, second tickets, failing engines."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from services.common.completion import Chunk, FinishReason, Usage
from services.common.errors import (
    CorruptData,
    HalogenError,
    InternalError,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from services.common.ids import ArtifactId, ProcessId, Revision
from services.common.no_engine import NoEngine
from services.common.registry.records import Served
from services.gateway import rerouting
from services.gateway.ports import EngineMessage
from services.gateway.request import TextPrompt, TokenPrompt
from services.gateway.sampling import SamplingAsked

if TYPE_CHECKING:
    from tests.unit.gateway.flow.conftest import Flow

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
REFUSALS: list[HalogenError] = [
    Overloaded("full", retry_after_s=1),
    Unavailable("gone"),
    PreconditionFailed("retired", reason="REVISION_RETIRED"),
    PreconditionFailed("restarted", reason="TICKET_FOR_OTHER_INSTANCE"),
    PreconditionFailed("late", reason="TICKET_EXPIRED"),
]


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def collect_until_failure(flow: Flow, failure: type[Exception]) -> tuple[list[Chunk], Exception]:
    chunks: list[Chunk] = []
    with pytest.raises(failure) as caught:
        await _read_into(chunks, flow)
    return chunks, caught.value


async def _read_into(chunks: list[Chunk], flow: Flow) -> None:
    async for chunk in flow.stream():
        chunks.append(chunk)


async def test_an_answer_comes_in_chunks_and_tells_where_it_is_from(flow: Flow) -> None:
    """Text and ids as the engine makes them; provenance first and last; one end, with the usage."""
    gate = asyncio.Event()
    rest = [await flow.says(" was"), await flow.says(" a fox", LENGTH)]
    flow.engines.scripts.append([await flow.says(" there"), gate, *rest])
    chunks: list[Chunk] = []
    async for chunk in flow.stream():
        chunks.append(chunk)
        gate.set()
    first, last = chunks[0], chunks[-1]
    assert " there was a fox" == text(chunks)
    assert await flow.ids(" there was a fox") == sum((chunk.token_ids for chunk in chunks), ())
    assert first.provenance is not None
    assert first.provenance == last.provenance
    assert ("engine-a", "test/1", 1, "stories") == (
        first.provenance.engine_id,
        first.provenance.runtime_build,
        first.provenance.revision,
        first.provenance.model,
    )
    assert [None] * (len(chunks) - 1) + [LENGTH] == [chunk.finish_reason for chunk in chunks]
    prompt = len(await flow.ids("once upon a time"))
    assert Usage(prompt, len(await flow.ids(" there was a fox"))) == last.usage


async def test_the_engine_gets_every_parameter_set(flow: Flow) -> None:
    """Defaults are resolved here, and what is in effect is told."""
    flow.engines.scripts.append([await flow.says("x", LENGTH)])
    [chunk] = await flow.collect(sampling=SamplingAsked(temperature=0.5))
    [asked] = flow.engines.asked
    assert chunk.provenance is not None
    assert chunk.provenance.sampling == asked.sampling
    assert (0.5, 32, (0,)) == (
        asked.sampling.temperature,
        asked.sampling.max_tokens,
        asked.sampling.stop_token_ids,
    )
    assert flow.scheduler.asked == flow.engines.asked


async def test_the_ending_token_counts_and_has_no_text(flow: Flow) -> None:
    """An end-of-sequence token, or a stop token of the request, is among the ids and not in the text."""
    fox = await flow.ids(" fox")
    message = (await flow.says("a fox", STOP))._replace(token_ids=(*await flow.ids("a"), *fox))
    flow.engines.scripts.append([message])
    [chunk] = await flow.collect(sampling=SamplingAsked(stop_token_ids=(fox[-1],)))
    assert chunk.text == flow.catalog.served()[0].text.tokenizer.decode(message.token_ids[:-1])
    assert message.token_ids == chunk.token_ids
    assert chunk.usage is not None
    assert len(message.token_ids) == chunk.usage.completion_tokens


# Turns red when: AnswerText.push has `text, matched = self._detokenizer.push(token_id), None`.
async def test_s_d1_a_stop_string_ends_the_engines_work(flow: Flow) -> None:
    """The text is cut at the stop string, however its tokens come; the engine is let go before the last chunk."""
    letters = [await flow.says(letter) for letter in "ABCDEFGHIJKLM"]
    flow.engines.scripts.append([*letters, InternalError("read on past the stop string")])
    chunks = [chunk async for chunk in flow.stream(stops=("DEFGHIJ",))]
    assert "ABC" == text(chunks)
    assert (STOP, "DEFGHIJ") == (chunks[-1].finish_reason, chunks[-1].matched_stop)
    assert chunks[-1].usage is not None
    assert 10 == chunks[-1].usage.completion_tokens
    assert 0 == flow.engines.open


async def test_ids_after_the_stop_string_are_not_part_of_the_answer(flow: Flow) -> None:
    """Where the engine sent several tokens at once, those after the match are neither told nor counted."""
    flow.engines.scripts.append([await flow.says("ABCDEFGHIJKLM", LENGTH)])
    [chunk] = await flow.collect(stops=("DEF",))
    letters = [await flow.ids(letter) for letter in "ABCDEF"]
    assert (sum(letters, ()), "ABC", STOP) == (chunk.token_ids, chunk.text, chunk.finish_reason)


# Turns red when: `free` in StopMatcher.push is max(0, len(pending) - max(len(n.text) - 1 for n in self._needles)).
async def test_s_d2_a_stop_string_that_does_not_match_delays_nothing(flow: Flow) -> None:
    """The first chunk has its text in the step in which the engine made it."""
    gate = asyncio.Event()
    flow.engines.scripts.append([await flow.says("A"), gate, await flow.says("B", LENGTH)])
    stream = flow.stream(stops=("zzzzzzzzzz",))
    assert "A" == (await anext(stream)).text
    gate.set()
    assert ["B"] == [chunk.text async for chunk in stream]


async def test_an_unfinished_character_at_the_end_is_told_as_such(flow: Flow) -> None:
    """What the whole decoding makes of half a character comes with the last chunk, not before."""
    half = (await flow.ids("\U0001fae0"))[:2]
    message = (await flow.says("", LENGTH))._replace(token_ids=half)
    flow.engines.scripts.append([await flow.says("a"), message])
    assert "a\ufffd" == text(await flow.collect())


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.reason)
async def test_a_refused_ticket_is_replaced_once(flow: Flow, refusal: HalogenError) -> None:
    """Before the first token another ticket is asked for, the first one given back, and the answer is whole."""
    flow.engines.scripts += [[refusal], [await flow.says("fox", LENGTH)]]
    assert "fox" == text(await flow.collect())
    assert flow.scheduler.ticket_ids[:1] == flow.scheduler.released
    assert 2 == len(flow.scheduler.asked)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.reason)
async def test_a_second_refusal_is_the_callers(flow: Flow, refusal: HalogenError) -> None:
    """No third ticket is asked for."""
    flow.engines.scripts += [[refusal], [refusal]]
    chunks, failure = await collect_until_failure(flow, HalogenError)
    assert isinstance(failure, HalogenError)
    if refusal.reason.startswith("TICKET"):  # our own affair: the caller is told to come back
        assert (Unavailable, "TICKET_REFUSED", 1.0) == (type(failure), failure.reason, failure.retry_after_s)
    else:
        assert ([], refusal) == (chunks, failure)
    await flow.scheduler.returned.wait()
    assert 2 == len(flow.scheduler.asked)


@pytest.mark.parametrize(
    "failure",
    [
        InvalidRequest("no"),
        InternalError("broken"),
        PreconditionFailed("another build", reason="GRAPH_MISMATCH"),
        CorruptData("bad"),
    ],
    ids=lambda failure: failure.reason,
)
async def test_other_failures_are_not_tried_again(flow: Flow, failure: HalogenError) -> None:
    """What another ticket cannot mend is passed on as it is."""
    flow.engines.scripts += [[failure]]
    assert ([], failure) == await collect_until_failure(flow, type(failure))
    await flow.scheduler.returned.wait()
    assert flow.scheduler.ticket_ids[:1] == flow.scheduler.released


async def test_the_schedulers_refusal_is_passed_on(flow: Flow) -> None:
    """A full queue is the caller's to wait for: the gateway does not knock again."""
    flow.scheduler.script = [Overloaded("queue full", reason="QUEUE_FULL", retry_after_s=2)]
    _, failure = await collect_until_failure(flow, Overloaded)
    assert isinstance(failure, Overloaded)
    assert ("QUEUE_FULL", 2, 1) == (failure.reason, failure.retry_after_s, len(flow.scheduler.asked))


async def test_a_scheduler_without_an_engine_is_passed_on(flow: Flow) -> None:
    """While the route stays the same, knocking again would help nobody."""
    flow.scheduler.script = [Unavailable("no engine", reason="NO_ENGINE", retry_after_s=1)]
    _, failure = await collect_until_failure(flow, Unavailable)
    assert isinstance(failure, Unavailable)
    assert ("NO_ENGINE", 1) == (failure.reason, len(flow.scheduler.asked))


async def test_a_request_that_waits_while_the_weights_are_replaced_goes_to_the_new_ones(flow: Flow) -> None:
    """A swap loses nobody: who waited for a ticket of the old artifact is routed and tokenized anew.

    Turns red when: Completions._answer raises a scheduler's refusal without looking at the route.
    """
    other = ArtifactId("b" * 64)
    flow.files.files[other] = flow.files.files[ArtifactId("a" * 64)] | {"chat_template.jinja": b"other"}
    gate = asyncio.Event()
    flow.scheduler.script = [[gate, Unavailable("no engine", reason="NO_ENGINE")]]
    flow.engines.scripts += [[await flow.says("fox", LENGTH, other)]]
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(flow.collect())
        await flow.scheduler.waiting.wait()
        await flow.serve(other, revision=2)
        gate.set()
    [chunk] = answer.result()
    assert chunk.provenance is not None
    assert (other, 2) == (chunk.provenance.artifact_id, chunk.provenance.revision)
    assert [ArtifactId("a" * 64), other] == [asked.artifact_id for asked in flow.scheduler.asked]


async def test_a_request_that_waits_while_the_weights_go_and_come_back_is_not_lost(flow: Flow) -> None:
    """Two swaps later the same artifact serves again, by a new revision: what was true of the old one is true no more.

    Turns red when: Completions._answer takes the same artifact for the same route.
    """
    artifact_id, gate = ArtifactId("a" * 64), asyncio.Event()
    flow.scheduler.script = [[gate, Unavailable("engines are still loading it", reason="NO_ENGINE")]]
    flow.engines.scripts += [[await flow.says("fox", LENGTH)]]
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(flow.collect())
        await flow.scheduler.waiting.wait()
        await flow.serve(artifact_id, revision=3)
        gate.set()
    [chunk] = answer.result()
    assert chunk.provenance is not None
    assert (artifact_id, 3) == (chunk.provenance.artifact_id, chunk.provenance.revision)
    assert [artifact_id] * 2 == [asked.artifact_id for asked in flow.scheduler.asked]


@pytest.fixture
async def other(flow: Flow) -> ArtifactId:
    """A second artifact, published and not served, in whose vocabulary f and h have changed places."""
    second, files = ArtifactId("b" * 64), flow.files.files[ArtifactId("a" * 64)]
    tokenizer = json.loads(files["tokenizer.json"])
    vocab = tokenizer["model"]["vocab"]
    vocab["f"], vocab["h"] = vocab["h"], vocab["f"]
    flow.files.files[second] = files | {"tokenizer.json": json.dumps(tokenizer).encode()}
    await flow.aim(second, revision=2)
    return second


async def says_in(flow: Flow, artifact_id: ArtifactId, words: str) -> EngineMessage:
    """What an engine says that serves it."""
    ids = tuple(await flow.catalog._loaded[artifact_id].encode(TextPrompt(words)))
    return EngineMessage(ids, ProcessId("engine-a"), artifact_id, "test/1", LENGTH)


def no_engine(served: Served | None, *, is_draining: bool = True) -> Unavailable:
    """A scheduler's refusal."""
    facts = NoEngine(served, is_draining=is_draining)
    return Unavailable("no engine", reason="NO_ENGINE", metadata=facts.metadata(), retry_after_s=1)


async def test_a_gateway_that_hears_late_goes_where_the_scheduler_says(flow: Flow, other: ArtifactId) -> None:
    """Its watch says nothing of the swap; what it answers is of the new artifact, in its vocabulary, from then on.

    Fault injection: turns red when `look_again` does not tell the catalog, `Routes.served` asks the mirror alone, or
    `_bind` keeps the tokens of the artifact before.
    """
    old = ArtifactId("a" * 64)
    flow.scheduler.script = [no_engine(Served(revision=Revision(2), artifact_id=other))]
    flow.engines.scripts += [[await says_in(flow, other, "hff")] for _ in range(2)]
    expected = {each: await flow.catalog._loaded[each].encode(TextPrompt("fhf")) for each in (old, other)}
    assert expected[old] != expected[other]
    for _ in range(2):
        [chunk] = await flow.collect(prompt=TextPrompt("fhf"))
        assert chunk.provenance is not None
        assert (other, 2, "hff") == (chunk.provenance.artifact_id, chunk.provenance.revision, chunk.text)
    asked = [(each.route.revision, each.artifact_id, each.prompt_token_ids) for each in flow.scheduler.asked]
    assert [(1, old, expected[old]), *[(2, other, expected[other])] * 2] == asked


async def test_a_request_waits_a_moment_for_news_that_engines_have_heard(
    flow: Flow, other: ArtifactId
) -> None:
    """Engines drain, the scheduler cannot say why yet: the registry's word is on its way to the gateway, too.

    Fault injection: turns red when `look_again` waits for nothing.
    """
    flow.scheduler.script = [no_engine(None)]
    flow.engines.scripts += [[await says_in(flow, other, "hff")]]
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(flow.collect())
        await flow.scheduler.returned.wait()
        await flow.serve(other, revision=2)
    [chunk] = answer.result()
    assert chunk.provenance is not None
    assert (other, 2, "hff") == (chunk.provenance.artifact_id, chunk.provenance.revision, chunk.text)


async def test_whoever_drains_for_good_is_asked_twice(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler may have been behind for a moment; after that its refusal is the caller's.

    Fault injection: turns red when `_attempt` takes no refusal of a draining engine for one that may pass.
    """
    monkeypatch.setattr(rerouting, "PATIENCE_S", 0.01)
    flow.scheduler.script = [no_engine(None), no_engine(None)]
    _, failure = await collect_until_failure(flow, Unavailable)
    assert isinstance(failure, Unavailable)
    assert ("NO_ENGINE", 2) == (failure.reason, len(flow.scheduler.asked))
    flow.scheduler.script = [no_engine(None)]
    flow.engines.scripts += [[await flow.says("fox", LENGTH)]]
    assert "fox" == text(await flow.collect())


async def test_a_retired_revision_is_tokenized_anew(flow: Flow) -> None:
    """When the artifact has gone, the request goes to the one served now, in that one's vocabulary."""
    other = ArtifactId("b" * 64)
    flow.files.files[other] = flow.files.files[ArtifactId("a" * 64)] | {
        "chat_template.jinja": b"other",
    }
    gate = asyncio.Event()
    retired = PreconditionFailed("retired", reason="REVISION_RETIRED")
    flow.engines.scripts += [[gate, retired], [await flow.says("fox", LENGTH, other)]]
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(flow.collect())
        await flow.engines.waiting.wait()
        await flow.serve(other, revision=2)
        gate.set()
    [chunk] = answer.result()
    assert chunk.provenance is not None
    assert (other, 2) == (chunk.provenance.artifact_id, chunk.provenance.revision)
    assert other == flow.scheduler.asked[1].artifact_id


async def test_an_answer_of_another_artifact_is_not_given_out(flow: Flow) -> None:
    """An engine that answers with other weights than asked for has failed."""
    flow.engines.scripts.append([await flow.says("fox", LENGTH, ArtifactId("c" * 64))])
    chunks, _ = await collect_until_failure(flow, InternalError)
    assert [] == chunks


# Turns red when: in Completions._attempt the except clause begins with
# `if answer.begun: return outbox.end(Ending(FinishReason.ABORTED))`.
@pytest.mark.parametrize(
    "failure",
    [InternalError("step failed"), Unavailable("connection lost"), Overloaded("full")],
    ids=lambda failure: failure.reason,
)
async def test_s_d7_an_engine_that_fails_in_the_middle_is_an_error(flow: Flow, failure: HalogenError) -> None:
    """What was made comes out, then the error: never an end that looks like success, never a second try."""
    flow.engines.scripts.append([await flow.says("once"), failure])
    chunks, seen = await collect_until_failure(flow, HalogenError)
    assert "once" == text(chunks)
    assert [None] == [chunk.finish_reason for chunk in chunks]
    assert isinstance(seen, Overloaded if isinstance(failure, Overloaded) else InternalError)
    assert 1 == len(flow.scheduler.asked)


async def test_an_answer_whose_weights_were_replaced_for_too_long_says_so(flow: Flow) -> None:
    """Half of it is out, of one artifact: the caller hears why it ends, and it is not gone on with in another's words.

    Turns red when: Completions._attempt takes every retired revision for one that may be routed anew.
    """
    flow.engines.scripts.append(
        [await flow.says("once"), PreconditionFailed("over", reason="REVISION_RETIRED")]
    )
    chunks, seen = await collect_until_failure(flow, PreconditionFailed)
    assert isinstance(seen, PreconditionFailed)
    assert ("once", "REVISION_RETIRED") == (text(chunks), seen.reason)
    assert 1 == len(flow.scheduler.asked)


# Turns red when: _relay ends the outbox with Ending(FinishReason.STOP) instead of raising at its end.
@pytest.mark.parametrize("said", ["", "once"])
async def test_s_d7_an_engine_that_stops_without_an_end_is_an_error(flow: Flow, said: str) -> None:
    """A stream that merely ceases is no answer."""
    flow.engines.scripts.append([await flow.says(said)] if said else [])
    chunks, failure = await collect_until_failure(flow, InternalError)
    assert said == text(chunks)
    assert "without saying how" in str(failure)


async def test_a_fault_of_ours_is_raised_to_the_caller(flow: Flow) -> None:
    """An error outside the tree reaches the boundary, which logs it; nothing hangs."""
    flow.engines.scripts.append([await flow.says("once"), ZeroDivisionError("bug")])
    chunks, _ = await collect_until_failure(flow, ZeroDivisionError)
    assert "once" == text(chunks)


async def test_a_prompt_that_is_too_long_is_refused_before_it_is_tokenized(flow: Flow) -> None:
    """Its bytes are counted first; neither scheduler nor engine hears of it."""
    with pytest.raises(InvalidRequest, match="1001 bytes of text; at most 1000"):
        await flow.collect(prompt=TextPrompt("x" * 1_001))
    assert [] == flow.scheduler.asked


async def test_what_does_not_fit_the_context_is_refused_before_a_ticket(flow: Flow) -> None:
    """The scheduler does not hear of what can never work."""
    with pytest.raises(InvalidRequest, match="200 tokens"):
        await flow.collect(prompt=TokenPrompt((1,) * 200))
    assert [] == flow.scheduler.asked


async def test_a_reader_that_is_behind_gets_the_rest_in_one_chunk(flow: Flow) -> None:
    """What comes while nobody reads is joined, not queued piece by piece."""
    gate = asyncio.Event()
    rest = [await flow.says(letter) for letter in "BCDEF"]
    flow.engines.scripts.append([await flow.says("A"), gate, *rest, await flow.says("G", LENGTH)])
    stream = flow.stream()
    chunks = [await anext(stream)]
    gate.set()
    await flow.engines.let_go.wait()
    chunks += [chunk async for chunk in stream]
    assert ["A", "BCDEFG"] == [chunk.text for chunk in chunks]
