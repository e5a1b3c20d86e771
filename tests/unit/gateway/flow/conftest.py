"""A gateway's flow between ports that follow a script."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.common.background import background
from services.common.completion import Chunk, FinishReason
from services.common.deadline import Deadline
from services.common.errors import NotFound
from services.common.ids import (
    ArtifactId,
    Cohort,
    InstanceId,
    ModelName,
    ProcessId,
    RequestId,
    Revision,
    TicketId,
)
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import Serving, Target
from services.common.registry.view import View
from services.common.ticket import Ticket
from services.gateway.catalog import Catalog
from services.gateway.completion import Completions, Limits
from services.gateway.contexts import Contexts
from services.gateway.metrics import GatewayMetrics
from services.gateway.ports import EngineMessage, Grant, TokenRequest
from services.gateway.request import Request, TextPrompt
from services.gateway.running import Running
from services.gateway.sampling import SamplingAsked
from services.gateway.text_model import TextModelReader
from services.gateway.ticket_returns import TicketReturns

MODEL = ModelName("stories")
ARTIFACT = ArtifactId("a" * 64)
PROMPT = "once upon a time"


Step = EngineMessage | Exception | asyncio.Event


class ScriptedFiles:
    """Artifacts' text files, or what a test wants to happen instead."""

    def __init__(self, files: dict[ArtifactId, dict[str, bytes]]) -> None:
        self.files = files
        self.failures: list[Exception] = []
        self.reads = 0

    async def read(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        if artifact_id not in self.files:
            raise NotFound("no such artifact")
        return self.files[artifact_id]


class ScriptedScheduler:
    """Grants at once, but first does what its script says: raises an error or waits for an event."""

    def __init__(self) -> None:
        self.script: list[Step | list[Step]] = []
        self.asked: list[TokenRequest] = []
        self.timeouts_s: list[float | None] = []
        self.ticket_ids: list[TicketId] = []
        self.released: list[TicketId] = []
        self.returned = asyncio.Event()
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()

    async def grant(self, request: TokenRequest, ticket_id: TicketId, timeout_s: float | None) -> Grant:
        self.asked.append(request)
        self.ticket_ids.append(ticket_id)
        self.timeouts_s.append(timeout_s)
        step = self.script.pop(0) if self.script else []
        for each in step if isinstance(step, list) else [step]:
            await self._do(each)
        ticket = Ticket(
            id=ticket_id,
            engine_instance_id=InstanceId("engine-1"),
            artifact_id=request.artifact_id,
            reserved_bytes=4096,
            term=1,
            expire_time_ns=0,
        )
        return Grant(ticket, b"mac", ProcessId("engine-a"), "127.0.0.1:1")

    async def _do(self, step: Step) -> None:
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, asyncio.Event)
        self.waiting.set()
        try:
            await step.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise

    async def release(self, ticket_id: TicketId, timeout_s: float) -> None:
        self.released.append(ticket_id)
        self.returned.set()


class ScriptedEngines:
    """Answers each call by its next script: messages, errors to raise, events to wait for."""

    def __init__(self) -> None:
        self.scripts: list[list[Step]] = []
        self.asked: list[TokenRequest] = []
        self.timeouts_s: list[float | None] = []
        self.open = 0
        self.read = 0
        self.waiting = asyncio.Event()
        self.let_go = asyncio.Event()

    @contextlib.asynccontextmanager
    async def generate(
        self, request: TokenRequest, grant: Grant, timeout_s: float | None
    ) -> AsyncIterator[AsyncIterator[EngineMessage]]:
        self.asked.append(request)
        self.timeouts_s.append(timeout_s)
        self.open += 1
        try:
            yield self._play(self.scripts.pop(0))
        finally:
            self.open -= 1
            self.let_go.set()

    async def _play(self, script: list[Step]) -> AsyncIterator[EngineMessage]:
        for step in script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                self.waiting.set()
                await step.wait()
                continue
            self.read += 1
            yield step


class Flow:
    """The gateway's flow: everything real but the scheduler, the engines and where files come from."""

    def __init__(self, store: MemoryStore, files: ScriptedFiles, catalog: Catalog) -> None:
        self.store, self.files, self.catalog = store, files, catalog
        self.scheduler, self.engines = ScriptedScheduler(), ScriptedEngines()
        self.running = Running(1_000)
        self.returns = TicketReturns(self.scheduler)
        self.registry = CollectorRegistry()
        self.completions = Completions(
            catalog=catalog,
            contexts=Contexts({}),
            scheduler=self.scheduler,
            engines=self.engines,
            running=self.running,
            returns=self.returns,
            limits=Limits(default_max_tokens=32, max_prompt_bytes=1_000),
            metrics=GatewayMetrics(self.registry),
        )

    async def aim(self, artifact_id: ArtifactId, revision: int) -> None:
        """Publishes the artifact; returns when the gateway has its text."""
        target = Target(revision=Revision(revision), artifact_id=artifact_id, who="w", why="y")
        await self.store.put(keys.target(MODEL, Cohort.STABLE), target.encode())
        async with contextlib.aclosing(self.catalog.changes()) as changes:
            async for _ in changes:
                if artifact_id in self.catalog.artifact_ids:
                    return

    async def serve(self, artifact_id: ArtifactId, revision: int = 1, model: ModelName = MODEL) -> None:
        """Publishes and serves the artifact; returns when the gateway can route to it."""
        target = Target(revision=Revision(revision), artifact_id=artifact_id, who="w", why="y")
        serving = Serving(revision=Revision(revision), artifact_id=artifact_id)
        await self.store.put(keys.target(model, Cohort.STABLE), target.encode())
        await self.store.put(keys.serving(model, Cohort.STABLE), serving.encode())
        async with contextlib.aclosing(self.catalog.changes()) as changes:
            async for _ in changes:
                if any(routed.route[2:] == (revision, artifact_id) for routed in self.catalog.served()):
                    return

    async def ids(self, text: str) -> tuple[int, ...]:
        [routed] = self.catalog.served()
        return tuple(await routed.text.encode(TextPrompt(text)))

    async def says(
        self, text: str, finish: FinishReason | None = None, artifact_id: ArtifactId = ARTIFACT
    ) -> EngineMessage:
        """The message of an engine that generates `text`."""
        ids = await self.ids(text) if text else ()
        return EngineMessage(ids, ProcessId("engine-a"), artifact_id, "test/1", finish)

    def request(self, **changes: Any) -> Request:
        fields: dict[str, Any] = {
            "request_id": RequestId("r"),
            "model": MODEL,
            "cohort": None,
            "prompt": TextPrompt(PROMPT),
            "sampling": SamplingAsked(seed=7),
        }
        return Request(**fields | changes)

    def stream(self, timeout_s: float | None = None, **changes: Any) -> AsyncGenerator[Chunk, None]:
        return self.completions.stream(self.request(**changes), Deadline.after(timeout_s))

    async def collect(self, timeout_s: float | None = None, **changes: Any) -> list[Chunk]:
        return [chunk async for chunk in self.stream(timeout_s, **changes)]

    def check_nothing_is_held(self) -> None:
        assert (0, 0) == (len(self.running), self.engines.open)


@pytest.fixture
async def flow(stories_files: dict[str, bytes]) -> AsyncIterator[Flow]:
    """A gateway that serves one model; at the end it must hold nothing."""
    store, files = MemoryStore(), ScriptedFiles({ARTIFACT: stories_files})
    targets, serving = View(store, keys.TARGETS, Target), View(store, keys.SERVING, Serving)
    async with targets, serving:
        catalog = Catalog(targets, serving, files, TextModelReader(1_000))
        async with background(catalog.follow()):
            flow = Flow(store, files, catalog)
            async with flow.returns:
                await flow.serve(ARTIFACT)
                yield flow
                flow.check_nothing_is_held()
