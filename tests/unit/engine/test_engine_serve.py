"""The engine on its wire: a real loader, a registry in memory, and a client that holds a ticket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halogen.v1 import engine_pb2, engine_pb2_grpc, types_pb2
from services.common.background import background
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.errors import (
    DeadlinePassed,
    HalogenError,
    InvalidRequest,
    Overloaded,
    PermissionDenied,
    PreconditionFailed,
)
from services.common.ids import ArtifactId, InstanceId, Revision, TicketId
from services.common.lifecycle import Stop
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import EngineRecord, GenerationState, Target
from services.common.registry.view import View
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.status import from_rpc_error
from services.common.ticket import Ticket, TicketSigner
from services.engine.config import EngineConfig
from services.engine.kernels.portable import PortableKernels
from services.engine.serve import serve
from services.loader.config import LoaderConfig
from services.loader.serve import serve as serve_loader
from tests.brake import Brake
from tests.unit.engine.unpacking_kernels import UnpackingKernels

KEY = b"k" * 32
PROMPT = [10, 20, 30, 40]
Watch = grpc.aio.UnaryStreamCall[engine_pb2.WatchOccupancyRequest, engine_pb2.WatchOccupancyResponse]
Call = grpc.aio.UnaryStreamCall[engine_pb2.GenerateTokensRequest, engine_pb2.GenerateTokensResponse]


class Client:
    """Speaks EngineService, and signs its own tickets as a scheduler would."""

    def __init__(self, channel: grpc.aio.Channel, record: EngineRecord, block_bytes: int) -> None:
        self.stub = engine_pb2_grpc.EngineServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)
        self.record = record
        self.block_bytes = block_bytes
        self._ids = itertools.count()

    def ticket(self, blocks: int = 4, key: bytes = KEY, **changes: Any) -> types_pb2.Ticket:
        ticket = Ticket(
            **{
                "id": TicketId(f"t{next(self._ids)}"),
                "engine_instance_id": InstanceId(self.record.instance_id),
                "artifact_id": self.record.generations[0].artifact_id,
                "reserved_bytes": blocks * self.block_bytes,
                "term": 1,
                "expire_time_ns": time.time_ns() + 10**10,
                **changes,
            }
        )
        expire_time = Timestamp()
        expire_time.FromNanoseconds(ticket.expire_time_ns)
        return types_pb2.Ticket(
            ticket_id=ticket.id,
            engine_instance_id=ticket.engine_instance_id,
            artifact_id=ticket.artifact_id,
            reserved_bytes=ticket.reserved_bytes,
            term=ticket.term,
            expire_time=expire_time,
            mac=TicketSigner(key).sign(ticket),
        )

    def call(
        self,
        ticket: types_pb2.Ticket,
        prompt: list[int] = PROMPT,
        timeout_s: float | None = 20,
        **changes: Any,
    ) -> Call:
        sampling = {"temperature": 0, "top_k": 0, "top_p": 1, "seed": 0, "max_tokens": 8, **changes}
        request = engine_pb2.GenerateTokensRequest(
            ticket=ticket,
            request_id=f"request of {ticket.ticket_id}",
            prompt_token_ids=prompt,
            sampling=types_pb2.SamplingParams(**{k: v for k, v in sampling.items() if v is not None}),
        )
        call: Call = self.stub.GenerateTokens(request, timeout=timeout_s)
        return call

    def watch(self) -> Watch:
        watch: Watch = self.stub.WatchOccupancy(engine_pb2.WatchOccupancyRequest())
        return watch


async def read(call: Call) -> list[engine_pb2.GenerateTokensResponse]:
    try:
        return [response async for response in call]
    except grpc.aio.AioRpcError as failure:
        raise from_rpc_error(failure) from None


@contextlib.asynccontextmanager
async def served(artifact: Path, tmp_path: Path, **settings: Any) -> AsyncIterator[Client]:
    """An engine that serves one artifact through a real loader."""
    artifact_id = ArtifactStore(tmp_path / "store").put(artifact)
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    key_file.chmod(0o600)
    registry, stop = MemoryStore(), Stop()
    bound: dict[str, asyncio.Future[Address]] = {
        role: asyncio.get_running_loop().create_future() for role in ("loader", "engine")
    }
    loader = LoaderConfig(store=str(tmp_path / "store"), place="file", cache_dir=tmp_path / "cache")
    await registry.put(
        keys.target("m", "stable"),  # type: ignore[arg-type]
        Target(revision=Revision(1), artifact_id=artifact_id, who="test", why="").encode(),
    )
    async with background(serve_loader(loader, registry, stop, bound["loader"].set_result)):
        engine = EngineConfig(
            **{
                "loader": await bound["loader"],
                "ticket_key_file": key_file,
                "kv_arena_bytes": 8 << 20,
                "threads": 1,
                "check_every_step": True,
                "dtype": "float32",
                "grace_s": 0,
                "id": "engine-1",
                **settings,
            }
        )
        async with background(serve(engine, registry, stop, bound["engine"].set_result)):
            channel = connect(str(await bound["engine"]))
            async with channel, View(registry, keys.ENGINES, EngineRecord) as engines:
                yield await ready_client(channel, engines)
            stop.ask("the test is over")


async def ready_client(channel: grpc.aio.Channel, engines: View[EngineRecord]) -> Client:
    """Waits until the engine says ACTIVE, in the registry and on its wire."""
    async with asyncio.timeout(20), contextlib.aclosing(engines.changes()) as changes:
        async for _ in changes:
            record = engines.records.get("engines/engine-1")
            if record and [GenerationState.ACTIVE] == [g.state for g in record.generations]:
                break
    client = Client(channel, record, 0)  # type: ignore[arg-type]
    watch = client.watch()
    first = await anext(aiter(watch))
    watch.cancel()
    client.block_bytes = first.snapshot.generations[0].block_bytes
    return client


async def test_an_answer_carries_its_provenance_first_and_last(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """Tokens, one finish reason, usage; engine, artifact and build in the first and the last message."""
    async with served(artifacts["stories-v1"], tmp_path) as client:
        responses = await read(client.call(client.ticket()))
        assert 8 == sum(len(response.token_ids) for response in responses)
        for response in (responses[0], responses[-1]):
            assert "engine-1" == response.engine_id
            assert client.record.generations[0].artifact_id == response.artifact_id
            assert client.record.runtime_build == response.runtime_build
        assert types_pb2.FINISH_REASON_LENGTH == responses[-1].finish_reason
        assert (4, 8) == (responses[-1].usage.prompt_tokens, responses[-1].usage.completion_tokens)
        assert [types_pb2.FINISH_REASON_UNSPECIFIED] * (len(responses) - 1) == [
            response.finish_reason for response in responses[:-1]
        ]
        health = await client.health.Check(health_pb2.HealthCheckRequest())
        assert health_pb2.HealthCheckResponse.SERVING == health.status


@pytest.mark.parametrize("is_writable", [True, False])
async def test_kernels_get_their_layout_and_answers_say_so(
    artifacts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    """Packed by the loader where it can; else as they are stored. The answer is the same, its provenance is not.

    Fault injection: turns red when LoaderClient asks for no layout, or _sign tells none.
    """
    monkeypatch.setattr("services.engine.serve.choose_kernels", lambda *_: UnpackingKernels())
    if not is_writable:
        (tmp_path / "cache" / "artifacts").mkdir(parents=True)
        (tmp_path / "cache" / "artifacts" / "derived").touch()  # a file in the way of the directory
    async with served(artifacts["stories-v1"], tmp_path, dtype="auto") as client:
        responses = await read(client.call(client.ticket()))
    layout = "packed32-v1" if is_writable else ""
    assert layout == client.record.generations[0].layout
    assert f"{client.record.runtime_build} {layout}".rstrip() == responses[-1].runtime_build
    monkeypatch.setattr("services.engine.serve.choose_kernels", lambda *_: PortableKernels())
    async with served(artifacts["stories-v1"], tmp_path, dtype="auto") as client:
        plain = await read(client.call(client.ticket()))
    assert ids_of(plain) == ids_of(responses)


def ids_of(responses: list[engine_pb2.GenerateTokensResponse]) -> list[int]:
    return [token for response in responses for token in response.token_ids]


async def test_seeded_sampling_is_reproducible_whatever_runs_beside_it(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """The same seed gives the same ids alone and among seven others; another seed gives others."""

    async with served(artifacts["stories-v1"], tmp_path) as client:

        async def ids(seed: int, temperature: float = 1.0) -> list[int]:
            call = client.call(client.ticket(), seed=seed, temperature=temperature, top_p=0.95, max_tokens=40)
            return [token for response in await read(call) for token in response.token_ids]

        alone = await ids(7)
        together = await asyncio.gather(*(ids(seed) for seed in range(1, 9)))
        assert alone == together[6]
        assert 8 == len({tuple(answer) for answer in together})


async def test_tickets_are_checked_before_anything_else(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """Forged, used, for another instance, for an artifact that is not here, or too small: each by its reason."""
    async with served(artifacts["stories-v1"], tmp_path) as client:
        good = client.ticket()
        await read(client.call(good))
        refusals: list[tuple[types_pb2.Ticket, type[HalogenError], str]] = [
            (good, PreconditionFailed, "TICKET_USED"),
            (client.ticket(key=b"x" * 32), PermissionDenied, "TICKET_FORGED"),
            (client.ticket(engine_instance_id="other"), PreconditionFailed, "TICKET_FOR_OTHER_INSTANCE"),
            (client.ticket(artifact_id=ArtifactId("f" * 64)), PreconditionFailed, "REVISION_RETIRED"),
            (client.ticket(blocks=0), InvalidRequest, "TICKET_TOO_SMALL"),
        ]
        for ticket, kind, reason in refusals:
            with pytest.raises(kind) as refused:
                await read(client.call(ticket))
            assert reason == refused.value.reason


async def test_bad_values_are_refused_and_harm_nobody(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """NaN, out of range, not set, out of vocabulary, empty: INVALID_ARGUMENT; a good request beside them is served."""
    async with served(artifacts["stories-v1"], tmp_path) as client:
        beside = client.call(client.ticket(), max_tokens=30)
        bad: list[dict[str, Any]] = [
            {"temperature": math.nan},
            {"temperature": math.inf},
            {"top_p": 0.0},
            {"top_p": None},
            {"top_k": 513},
            {"max_tokens": 0},
            {"stop_token_ids": [512]},
            {"prompt": []},
            {"prompt": [512]},
            {"prompt": [1] * 150, "max_tokens": 100},
        ]
        for changes in bad:
            with pytest.raises(InvalidRequest):
                await read(client.call(client.ticket(blocks=40), **changes))
        assert 30 == sum(len(response.token_ids) for response in await read(beside))


async def test_a_ticket_whose_request_is_turned_down_is_closed(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """It is spent; schedulers hear so at once instead of waiting for it to expire.

    Turns red when: EngineServicer._closing_if_refused does not close.
    """
    async with served(artifacts["stories-v1"], tmp_path) as client:
        watch = client.watch()
        feed = aiter(watch)
        await anext(feed)
        ticket = client.ticket(blocks=11)
        with pytest.raises(InvalidRequest):
            await read(client.call(ticket, top_p=0.0))
        async with asyncio.timeout(10):
            assert [ticket.ticket_id] == list((await anext(feed)).delta.closed_ticket_ids)
        watch.cancel()


@pytest.mark.parametrize("seconds", [-5, 1 << 62])
async def test_an_expiry_that_is_no_time_is_a_forgery(
    artifacts: dict[str, Path], tmp_path: Path, seconds: int
) -> None:
    """No ticket of ours has one; nobody's bytes are an engine's fault."""
    async with served(artifacts["stories-v1"], tmp_path) as client:
        ticket = client.ticket()
        ticket.expire_time.seconds = seconds
        with pytest.raises(PermissionDenied):
            await read(client.call(ticket))


async def test_a_full_engine_refuses_with_a_retry_hint(
    artifacts: dict[str, Path], tmp_path: Path, brake: Brake
) -> None:
    """The engine's own word on its arena, whatever the scheduler promised."""
    async with served(artifacts["stories-v1"], tmp_path, kv_arena_bytes=6 * 32 * 1024) as client:
        first = client.call(client.ticket(blocks=5), max_tokens=70)
        answer = aiter(first)
        await anext(answer)
        with brake.held(), pytest.raises(Overloaded) as refused:
            await read(client.call(client.ticket(blocks=3), max_tokens=40))
        assert refused.value.retry_after_s
        assert [] != [response async for response in answer]


async def test_a_caller_that_cancels_frees_its_blocks(artifacts: dict[str, Path], tmp_path: Path) -> None:
    """S-A2 at the engine: cancelling the call is all it takes; the ticket is closed on the feed."""
    async with served(artifacts["stories-v1"], tmp_path) as client:
        watch = client.watch()
        feed = aiter(watch)
        assert 0 == len((await anext(feed)).snapshot.tickets)
        ticket = client.ticket(blocks=11)
        call = client.call(ticket, max_tokens=170)
        await anext(aiter(call))
        call.cancel()
        closed: set[str] = set()
        async with asyncio.timeout(10):
            while ticket.ticket_id not in closed:
                closed |= set((await anext(feed)).delta.closed_ticket_ids)
        watch.cancel()


async def test_a_deadline_ends_the_stream_with_deadline_exceeded(
    artifacts: dict[str, Path], tmp_path: Path
) -> None:
    """The status is the caller's own deadline, and the engine stops by itself."""
    async with served(artifacts["stories-v1"], tmp_path) as client:
        call = client.call(client.ticket(blocks=12), timeout_s=0.02, max_tokens=180)
        with pytest.raises(DeadlinePassed):
            await read(call)
        await read(client.call(client.ticket(blocks=12)))
