"""The users' client against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from halogen.v1 import inference_pb2 as pb
from halogen.v1 import inference_pb2_grpc, types_pb2
from services.common.client import Client
from services.common.completion import FinishReason, Usage
from services.common.errors import (
    AlreadyExists,
    Cancelled,
    DeadlinePassed,
    HalogenError,
    InternalError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from services.common.rpc.address import Address
from services.common.rpc.server import RpcServer

TIMES = 3
FULL = Overloaded("no room", retry_after_s=0.001)


def said(text: str, *, last: bool = False) -> pb.CompletionChunk:
    chunk = pb.CompletionChunk(request_id="r", token_ids=[len(text)], text=text)
    if last:
        chunk.finish_reason = types_pb2.FINISH_REASON_LENGTH
        chunk.usage.prompt_tokens, chunk.usage.completion_tokens = 1, 2
        chunk.provenance.model, chunk.provenance.cohort = "m", "stable"
        chunk.provenance.sampling.seed = 7
    return chunk


class Gateway(inference_pb2_grpc.InferenceServiceServicer):
    """Answers each call by its next script: chunks, errors, or events to wait for."""

    def __init__(self) -> None:
        self.scripts: list[list[pb.CompletionChunk | Exception | asyncio.Event]] = []
        self.requests: list[Any] = []
        self.deadlines_s: list[float | None] = []
        self.ended = asyncio.Event()
        self.failure: HalogenError | None = None

    async def Generate(  # noqa: N802  # gRPC's name
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.deadlines_s.append(context.time_remaining())
        async for chunk in self._play(request):
            yield pb.GenerateResponse(chunk=chunk)

    async def Chat(  # noqa: N802  # gRPC's name
        self, request: pb.ChatRequest, context: Any
    ) -> AsyncIterator[pb.ChatResponse]:
        async for chunk in self._play(request):
            yield pb.ChatResponse(chunk=chunk)

    async def Abort(  # noqa: N802  # gRPC's name
        self, request: pb.AbortRequest, context: Any
    ) -> pb.AbortResponse:
        if self.failure:
            raise self.failure
        return pb.AbortResponse(found=request.request_id == "r")

    async def ListModels(  # noqa: N802  # gRPC's name
        self, request: pb.ListModelsRequest, context: Any
    ) -> pb.ListModelsResponse:
        if self.failure:
            raise self.failure
        model = pb.ServedModel(model="m", cohort="canary", artifact_id="a", revision=3, max_context_tokens=9)
        return pb.ListModelsResponse(models=[model])

    async def _play(self, request: Any) -> AsyncIterator[pb.CompletionChunk]:
        self.requests.append(request)
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
        finally:
            self.ended.set()


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, Client]]:
    servicer, server = Gateway(), RpcServer(["halogen.v1.InferenceService"])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc_server)
    address = await server.start(Address("127.0.0.1", 0))
    async with Client(str(address), max_tries=TIMES) as client:
        yield servicer, client
    await server.stop(0)


async def test_an_answer_comes_chunk_by_chunk(gateway: tuple[Gateway, Client]) -> None:
    """Chunks come as the server sends them, in the system's own words."""
    server, client = gateway
    server.scripts.append([said("once"), said(" upon", last=True)])
    chunks = [chunk async for chunk in client.generate("hello", temperature=0.0, stop=["x"], model="m")]
    assert ["once", " upon"] == [chunk.text for chunk in chunks]
    assert (FinishReason.LENGTH, Usage(1, 2)) == (chunks[1].finish_reason, chunks[1].usage)
    assert chunks[1].provenance is not None
    assert 7 == chunks[1].provenance.sampling.seed
    [request] = server.requests
    assert ("hello", "m", ["x"]) == (request.text, request.model, list(request.stop))
    assert (True, False) == (request.sampling.HasField("temperature"), request.sampling.HasField("top_p"))


async def test_a_whole_answer_is_joined(gateway: tuple[Gateway, Client]) -> None:
    """`complete` reads to the end; token ids are a prompt too, and so is a conversation."""
    server, client = gateway
    server.scripts += [[said("once"), said(" upon", last=True)]] * 2
    answer = await client.generate([1, 2, 3], max_tokens=2).complete()
    assert ("once upon", (4, 5), FinishReason.LENGTH) == (answer.text, answer.token_ids, answer.finish_reason)
    assert "once upon" == (await client.chat([{"role": "user", "content": "hi"}]).complete()).text
    assert [1, 2, 3] == list(server.requests[0].token_ids.ids)
    assert "hi" == server.requests[1].messages[0].content


async def test_breaking_out_of_the_loop_cancels(gateway: tuple[Gateway, Client]) -> None:
    """A consumer that has enough just leaves; the server hears of it."""
    server, client = gateway
    server.scripts.append([said("once"), asyncio.Event()])
    async for _ in client.generate("hello"):
        break
    await server.ended.wait()


async def test_leaving_the_block_cancels(gateway: tuple[Gateway, Client]) -> None:
    """As a context manager the stream has ended when its block has, by an exception too."""
    server, client = gateway
    server.scripts.append([said("once"), asyncio.Event()])

    async def fail() -> None:
        async with client.generate("hello") as stream:
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await server.ended.wait()


async def test_cancelling_the_reader_cancels(gateway: tuple[Gateway, Client]) -> None:
    """A cancelled task is cancelled, not failed, and takes its request with it."""
    server, client = gateway
    begun = asyncio.Event()
    server.scripts.append([said("once"), asyncio.Event()])

    async def read() -> None:
        async for _ in client.generate("hello"):
            begun.set()

    reading = asyncio.ensure_future(read())
    await begun.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await server.ended.wait()


async def test_closing_the_client_ends_what_runs(gateway: tuple[Gateway, Client]) -> None:
    """A reader of a closed client is told so, rather than left waiting."""
    server, client = gateway
    server.scripts.append([said("once"), asyncio.Event()])
    stream = aiter(client.generate("hello"))
    await anext(stream)
    rest = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await client.__aexit__(None, None, None)
    with pytest.raises(Cancelled):
        await rest
    await server.ended.wait()


async def test_a_call_that_the_server_drops_before_its_answer_is_asked_again(
    gateway: tuple[Gateway, Client],
) -> None:
    """A server that ends drops calls as CANCELLED; that is no cancellation of ours, and nothing was given yet.

    Fault injection: leave CANCELLED as it comes in `_chunks`.
    """
    server, client = gateway
    server.scripts += [[Cancelled("ending")], [said("once", last=True)]]
    assert "once" == (await client.generate("hello").complete()).text
    server.scripts.append([said("once"), Cancelled("ending")])
    with pytest.raises(Unavailable, match="ask again"):
        await client.generate("hello").complete()


async def test_a_deadline_is_the_servers_too(gateway: tuple[Gateway, Client]) -> None:
    """The server learns how long it may take, and the client does not wait longer."""
    server, client = gateway
    server.scripts += [[said("", last=True)], [asyncio.Event()]]
    await client.generate("hello", timeout_s=60).complete()
    assert server.deadlines_s[0] is not None
    assert 55 < server.deadlines_s[0] < 62  # the wire rounds up
    with pytest.raises(DeadlinePassed):
        await client.generate("hello", timeout_s=0.05).complete()


async def test_it_comes_back_when_the_server_says(gateway: tuple[Gateway, Client]) -> None:
    """Refused with a pushback before the first chunk, it asks again."""
    server, client = gateway
    server.scripts += [[FULL], [Unavailable("soon", retry_after_s=0)], [said("once", last=True)]]
    assert "once" == (await client.generate("hello", timeout_s=60).complete()).text
    assert TIMES == len(server.requests)


async def test_its_patience_is_bounded(gateway: tuple[Gateway, Client]) -> None:
    """After the configured number of tries the last refusal is raised."""
    server, client = gateway
    server.scripts += [[FULL]] * (TIMES + 1)
    with pytest.raises(Overloaded, match="no room"):
        await client.generate("hello").complete()
    assert TIMES == len(server.requests)


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("gone for good"),
        Overloaded("never", retry_after_s=-1),
        InvalidRequest("no"),
        AlreadyExists("taken"),
    ],
    ids=str,
)
async def test_without_a_pushback_it_does_not_come_back(
    gateway: tuple[Gateway, Client], failure: HalogenError
) -> None:
    """No pushback, or a negative one, means that asking again is of no use."""
    server, client = gateway
    server.scripts.append([failure])
    with pytest.raises(type(failure), match=str(failure)):
        await client.generate("hello").complete()
    assert 1 == len(server.requests)


async def test_after_the_first_chunk_it_does_not_come_back(gateway: tuple[Gateway, Client]) -> None:
    """Half an answer is never begun again behind the reader's back."""
    server, client = gateway
    server.scripts.append([said("once"), FULL])
    stream = aiter(client.generate("hello"))
    assert "once" == (await anext(stream)).text
    with pytest.raises(Overloaded):
        await anext(stream)
    assert 1 == len(server.requests)


async def test_it_does_not_wait_beyond_its_deadline(gateway: tuple[Gateway, Client]) -> None:
    """A pushback longer than what is left is the end, at once and with the server's reason."""
    server, client = gateway
    server.scripts.append([Overloaded("no room", retry_after_s=3_600)])
    with pytest.raises(Overloaded):
        await client.generate("hello", timeout_s=30).complete()


async def test_a_stream_that_merely_ceases_is_an_error(gateway: tuple[Gateway, Client]) -> None:
    """An answer has a last chunk, or it is none."""
    server, client = gateway
    server.scripts.append([said("once")])
    with pytest.raises(InternalError, match="without a last chunk"):
        await client.generate("hello").complete()


async def test_nobody_there_is_unavailable() -> None:
    """A refused connection is an error of the tree, at once."""
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(Unavailable):
            await client.generate("hello").complete()


async def test_aborting_and_listing(gateway: tuple[Gateway, Client]) -> None:
    """The other calls, and their failures, in the system's own words."""
    server, client = gateway
    assert (True, False) == (await client.abort("r"), await client.abort("s"))
    [model] = await client.list_models()
    assert ("m", "canary", "a", 3, 9) == model
    server.failure = InvalidRequest("no")
    with pytest.raises(InvalidRequest):
        await client.abort("")
    with pytest.raises(InvalidRequest):
        await client.list_models()


async def test_a_misspelt_option_is_an_error() -> None:
    """It is never ignored for a default."""
    async with Client("127.0.0.1:1") as client:
        with pytest.raises(TypeError, match="temprature"):
            client.generate("x", temprature=1)  # type: ignore[call-arg]


async def test_a_client_that_is_not_open_says_how_to_open_it() -> None:
    """Before its scope and after it."""
    client = Client("127.0.0.1:1")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="async with"):
            await client.list_models()
        async with client:
            pass
