"""A whole gateway over the wire."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.cli.control_client import ControlClient
from services.common.completion import FinishReason
from services.common.errors import (
    AlreadyExists,
    Cancelled,
    DeadlinePassed,
    HalogenError,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.records import GatewayRecord, Target
from services.common.registry.view import View
from services.common.rpc.client import connect
from services.gateway import scheduler_client

if TYPE_CHECKING:
    from tests.unit.gateway.wire.conftest import Gateway, Peers

ARTIFACT = ArtifactId("a" * 64)
OTHER = ArtifactId("b" * 64)
MODEL, STABLE = ModelName("stories"), Cohort.STABLE


async def test_a_request_goes_all_the_way(gateway: Gateway) -> None:
    """Text in, text out; the ticket, its expiry and every sampling parameter reach the engine as they were."""
    gateway.peers.script = [(65, 66), (67,)]
    answer = await gateway.client.generate("a fox", max_tokens=8, seed=7, stop_token_ids=[9]).complete()
    assert ("abc", (65, 66, 67), FinishReason.LENGTH) == (answer.text, answer.token_ids, answer.finish_reason)
    [asked] = gateway.peers.asked
    assert ("t", b"mac", 123_456_789) == (
        asked.ticket.ticket_id,
        asked.ticket.mac,
        asked.ticket.expire_time.nanos,
    )
    scalars = ("temperature", "top_k", "top_p", "seed", "max_tokens", "ignore_eos", "logprobs")
    assert [] == [name for name in scalars if not asked.sampling.HasField(name)]
    assert answer.provenance is not None
    assert ("stories", ARTIFACT, 1, "engine-a", "test/1") == (
        answer.provenance.model,
        answer.provenance.artifact_id,
        answer.provenance.revision,
        answer.provenance.engine_id,
        answer.provenance.runtime_build,
    )
    assert (9, 0) == answer.provenance.sampling.stop_token_ids


async def test_a_conversation_is_laid_out_by_the_models_template(gateway: Gateway) -> None:
    """The engine gets the same ids as for the laid out text."""
    await gateway.client.chat([{"role": "user", "content": "hi"}]).complete()
    await gateway.client.generate("user: hi\nassistant:").complete()
    chat, text = gateway.peers.asked
    assert text.prompt_token_ids == chat.prompt_token_ids


async def test_the_registry_learns_what_is_loaded(gateway: Gateway) -> None:
    """gateways/{id} tells the scheduler that traffic may move here."""
    async with (
        View(gateway.store, keys.GATEWAYS, GatewayRecord) as view,
        contextlib.aclosing(view.changes()) as changes,
    ):
        async for _ in changes:
            record = view.records[keys.gateway(ProcessId("gateway-a"))]
            if record.artifact_ids:
                break
    assert ((ARTIFACT,), gateway.address) == (record.artifact_ids, record.address)


async def test_the_registry_and_status_learn_what_cannot_be_read(gateway: Gateway) -> None:
    """gateways/{id} says why, operators see it, and the status says who gave it."""
    gateway.peers.files = {**gateway.peers.files, "tokenizer.json": b'{"a": 1}'}
    await gateway.publish(ArtifactId("b" * 64), 2)
    async with ControlClient(gateway.address) as control, contextlib.aclosing(control.watch()) as statuses:
        async for status in statuses:
            failures = [failure for process in status.processes for failure in process.text_failures]
            if failures:
                break
    named = [(one.model, one.cohort, one.revision, one.artifact_id) for one in failures]
    assert [(MODEL, STABLE, 2, "b" * 64)] == named
    assert "tokenizer.json" in failures[0].error
    assert "gateway-a" == status.answered_by


async def test_models_are_listed(gateway: Gateway) -> None:
    """What can be asked for, with its revision and context."""
    assert [(MODEL, STABLE, ARTIFACT, 1, 192)] == [tuple(m) for m in await gateway.client.list_models()]


async def test_a_client_that_leaves_ends_the_engines_work(gateway: Gateway) -> None:
    """Cancelling the call is enough; no abort is needed."""
    gateway.peers.script = [(65,), asyncio.Event()]
    async with gateway.client.generate("a fox", request_id="r") as stream:
        async for _ in stream:
            break
    await gateway.peers.engine_left.wait()
    gateway.peers.script = []
    await gateway.client.generate("a fox", request_id="r").complete()


async def test_a_client_that_leaves_in_a_flood_holds_nothing(gateway: Gateway) -> None:
    """Where the gateway is in the middle of a write that nobody takes, leaving ends the request all the same."""
    gateway.peers.script = [(65,) * 500] * 20_000
    stream = gateway.client.generate("a fox", request_id="r")
    async for _ in stream:
        if gateway.peers.sent > 200:
            break
    await stream.aclose()
    await gateway.peers.engine_left.wait()
    gateway.peers.script = []
    await gateway.client.generate("a fox", request_id="r").complete()


async def test_an_abort_ends_the_stream_and_the_engines_work(gateway: Gateway) -> None:
    """From any connection, by the request's id, with a regular end for the reader."""
    gateway.peers.script = [(65,), asyncio.Event()]
    chunks = []
    async for chunk in gateway.client.generate("a fox", request_id="r"):
        chunks.append(chunk)
        if len(chunks) == 1:
            assert await gateway.client.abort("r")
    assert FinishReason.ABORTED == chunks[-1].finish_reason
    await gateway.peers.engine_left.wait()
    assert not await gateway.client.abort("r")


async def test_a_deadline_ends_the_engines_work(gateway: Gateway) -> None:
    """The engine hears of the deadline by itself, and the client gets its status."""
    gateway.peers.script = [(65,), asyncio.Event()]
    with pytest.raises(DeadlinePassed):
        await gateway.client.generate("a fox", timeout_s=0.2).complete()
    await gateway.peers.engine_left.wait()


# Turns red when: in Completions._attempt the except clause begins with
# `if answer.begun: return outbox.end(Ending(FinishReason.ABORTED))`.
async def test_s_d7_a_failing_engine_is_internal_on_the_wire(gateway: Gateway) -> None:
    """After partial output the status is an error, never OK."""
    gateway.peers.script = [(65,), Unavailable("step failed")]
    stream = aiter(gateway.client.generate("a fox"))
    assert "a" == (await anext(stream)).text
    with pytest.raises(InternalError) as caught:
        await anext(stream)
    assert "ENGINE_FAILED" == caught.value.reason


async def test_an_overloaded_scheduler_tells_when_to_come_back(gateway: Gateway) -> None:
    """Its pushback goes through to the client."""
    gateway.peers.refusal = Overloaded("queue full", reason="QUEUE_FULL", retry_after_s=1.5)
    with pytest.raises(Overloaded) as caught:
        await gateway.client.generate("a fox").complete()
    assert ("QUEUE_FULL", 1.5) == (caught.value.reason, caught.value.retry_after_s)


async def test_millions_of_small_parts_do_not_hold_up_the_gateway(gateway: Gateway) -> None:
    """A request of many empty messages or stop strings is refused; taking it over is bounded too."""
    with pytest.raises(InvalidRequest, match="more than 4096 messages"):
        await gateway.client.chat([{"role": "user", "content": ""}] * 200_000).complete()
    with pytest.raises(InvalidRequest, match="more than 16 stop strings"):
        await gateway.client.generate("a fox", stop=["x"] * 200_000).complete()


async def test_an_engine_that_is_ending_is_unavailable(gateway: Gateway) -> None:
    """A call that the engine cancels, twice, is not told as if the caller had left."""
    gateway.peers.script = [Cancelled("the engine is ending")]
    with pytest.raises(Unavailable) as caught:
        await gateway.client.generate("a fox").complete()
    assert (1.0, 2) == (caught.value.retry_after_s, len(gateway.peers.asked))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits less for another scheduler than a user would."""
    monkeypatch.setattr(scheduler_client, "PATIENCE_S", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_without_a_scheduler_new_work_is_unavailable_soon(gateway: Gateway) -> None:
    """Never a hang: the status says when to ask again, whether the leader is dead or nobody leads at all."""
    await gateway.peer_server.stop(0)
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await gateway.client.generate("a fox").complete()
        assert ("NOT_LEADER", 0.5) == (caught.value.reason, caught.value.retry_after_s)
        await gateway.store.delete(keys.SCHEDULER_LEADER)


@pytest.mark.parametrize("reason", ["NOT_LEADER", "STOPPING"])
async def test_the_next_leader_is_asked(gateway: Gateway, other: Peers, reason: str) -> None:
    """A scheduler that leads no more costs a request nothing but the time until another does."""
    gateway.peers.refusal = Unavailable("gone", reason=reason)
    answer = asyncio.ensure_future(gateway.client.generate("a fox").complete())
    await gateway.peers.granting.wait()
    await gateway.lead(other.address, term=2)
    assert FinishReason.LENGTH == (await answer).finish_reason
    assert 1 == len(other.asked)


async def test_a_dead_leader_is_followed_by_the_next(gateway: Gateway, other: Peers) -> None:
    """The same where its connection is refused."""
    await gateway.peer_server.stop(0)
    answer = asyncio.ensure_future(gateway.client.generate("a fox").complete())
    await asyncio.sleep(0)
    await gateway.lead(other.address, term=2)
    assert FinishReason.LENGTH == (await answer).finish_reason


async def test_a_frozen_leader_is_left_as_soon_as_another_leads(gateway: Gateway, other: Peers) -> None:
    """Nobody waits for a scheduler that was replaced while it was silent.

    Fault injection: without SchedulerClient._end_with the answer never comes.
    """
    gateway.peers.frozen = True
    answer = asyncio.ensure_future(gateway.client.generate("a fox").complete())
    await gateway.peers.granting.wait()
    await gateway.lead(other.address, term=2)
    assert FinishReason.LENGTH == (await answer).finish_reason
    assert 1 == len(other.asked)


async def test_a_refusal_that_another_would_give_too_is_not_asked_twice(gateway: Gateway) -> None:
    """No engine is no engine, whoever is asked."""
    gateway.peers.refusal = Unavailable("no engine", reason="NO_ENGINE", retry_after_s=1.0)
    with pytest.raises(Unavailable) as caught:
        await gateway.client.generate("a fox").complete()
    assert "NO_ENGINE" == caught.value.reason


async def test_a_deadline_ends_the_wait_for_a_leader(gateway: Gateway) -> None:
    """The caller's time is its own."""
    await gateway.store.delete(keys.SCHEDULER_LEADER)
    with pytest.raises(DeadlinePassed):
        await gateway.client.generate("a fox", timeout_s=0.2).complete()


@pytest.mark.parametrize(
    ("options", "failure"),
    [
        ({"model": "cow"}, NotFound),
        ({"cohort": "blue"}, InvalidRequest),
        ({"temperature": float("nan")}, InvalidRequest),
        ({"top_p": 0.0}, InvalidRequest),
        ({"max_tokens": 0}, InvalidRequest),
        ({"max_tokens": 4_000_000_000}, InvalidRequest),
        ({"stop_token_ids": [512]}, InvalidRequest),
        ({"stop": [""]}, InvalidRequest),
        ({"request_id": "r" * 129}, InvalidRequest),
    ],
    ids=str,
)
async def test_bad_input_goes_no_further(
    gateway: Gateway, options: dict[str, Any], failure: type[HalogenError]
) -> None:
    """It is refused here, by name, and no engine sees it."""
    with pytest.raises(failure):
        await gateway.client.generate("a fox", **options).complete()
    assert [] == gateway.peers.asked


@pytest.mark.parametrize(
    "prompt", ["", [], "x" * 1_001, [512], [1] * 193], ids=["text", "ids", "long", "id", "context"]
)
async def test_bad_prompts_go_no_further(gateway: Gateway, prompt: str | list[int]) -> None:
    """Empty, too long, outside the vocabulary or the context: refused."""
    with pytest.raises(InvalidRequest):
        await gateway.client.generate(prompt).complete()
    assert [] == gateway.peers.asked


async def test_an_id_in_use_is_refused(gateway: Gateway) -> None:
    """Over the wire too."""
    gate = asyncio.Event()
    gateway.peers.script = [(65,), gate]
    stream = aiter(gateway.client.generate("a fox", request_id="r"))
    await anext(stream)
    with pytest.raises(AlreadyExists):
        await gateway.client.generate("a fox", request_id="r").complete()
    gate.set()
    assert FinishReason.LENGTH == [chunk async for chunk in stream][-1].finish_reason


async def test_an_engine_never_sees_an_id_twice(gateway: Gateway) -> None:
    """An id may be used again before an engine has cleaned up, and by another gateway: the ticket tells them apart."""
    await gateway.client.generate("a fox", request_id="r").complete()
    await gateway.client.generate("a fox", request_id="r" * 128).complete()
    assert ["r/t", "r" * 126 + "/t"] == [asked.request_id for asked in gateway.peers.asked]


async def test_a_gateway_that_ends_finishes_what_runs(gateway: Gateway) -> None:
    """New calls are turned away, the running answer is whole, the record is gone."""
    gate = asyncio.Event()
    gateway.peers.script = [(65,), gate, (66,)]
    stream = aiter(gateway.client.generate("a fox"))
    await anext(stream)
    async with connect(gateway.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        gateway.end()
        assert health_pb2.HealthCheckResponse.NOT_SERVING == (await watch.read()).status
        watch.cancel()
    gate.set()
    assert "b" == "".join([chunk.text async for chunk in stream])
    async with (
        asyncio.timeout(10),
        View(gateway.store, keys.GATEWAYS, GatewayRecord) as view,
        contextlib.aclosing(view.changes()) as changes,
    ):
        async for _ in changes:
            if not view.records:
                break


async def test_a_gateway_whose_engines_are_gone_is_not_ready(gateway: Gateway) -> None:
    """A lease that ends says it on behalf of an engine that cannot; requests are tried all the same.

    Fault injection: let `Report` count every artifact as ACTIVE.
    """
    async with connect(gateway.address) as channel:
        request = health_pb2.HealthCheckRequest(service="stories@stable")
        watch = health_pb2_grpc.HealthStub(channel).Watch(request)
        assert health_pb2.HealthCheckResponse.SERVING == (await watch.read()).status
        await gateway.store.delete(keys.engine(ProcessId("engine-a")))
        assert health_pb2.HealthCheckResponse.NOT_SERVING == (await watch.read()).status
        watch.cancel()
    gateway.peers.script = [(65,)]
    assert "a" == (await gateway.client.generate("a fox").complete()).text


async def test_a_registry_that_lost_everything_moves_nobody(gateway: Gateway) -> None:
    """What was published goes on being served until something newer is said.

    Fault injection: mirror serving/ without `keeps`.
    """
    canary = Target(revision=Revision(2), artifact_id=OTHER, who="w", why="y")
    async with View(gateway.store, keys.GATEWAYS, GatewayRecord) as view:
        for prefix in (keys.TARGETS, keys.SERVING):
            for entry in (await gateway.store.list(prefix)).entries:
                await gateway.store.delete(entry.key)
        await gateway.store.put(keys.target(MODEL, Cohort.CANARY), canary.encode())
        async with contextlib.aclosing(view.changes()) as changes:  # it has heard of what came after
            async for _ in changes:
                if OTHER in view.records[keys.gateway(ProcessId("gateway-a"))].artifact_ids:
                    break
    gateway.peers.script = [(65,)]
    answer = await gateway.client.generate("a fox").complete()
    assert answer.provenance is not None
    assert (1, STABLE) == (answer.provenance.revision, answer.provenance.cohort)


async def test_a_broken_stub_does_not_stop_the_others(gateway: Gateway) -> None:
    """A call with no prompt at all is invalid, not a failure."""
    async with connect(gateway.address) as channel:
        untyped: Any = channel
        call = untyped.unary_stream("/halogen.v1.InferenceService/Generate")(b"")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()
