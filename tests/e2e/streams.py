"""Requests without pause on every gateway of a fleet, and what became of each of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final

from services.common.backoff import Backoff
from services.common.client import Client
from services.common.completion import Provenance
from services.common.errors import DeadlinePassed, HalogenError
from services.common.ids import ArtifactId, Revision
from tests.e2e.fleet import Fleet, Member

MODEL: Final = "tiny"
TIMEOUT_S: Final = 60.0
Answers = Mapping[str, tuple[int, ...]]  # prompt to the ids of a quiet run


@dataclasses.dataclass(slots=True, kw_only=True)
class Stream:
    """One request.

    Attributes:
        gateway_id: Whom it was asked of.
        engine_id: Who answered, once the answer has begun.
        artifact_ids: What its chunks named.
        revision: Under which it is served, once the answer has begun.
        error: What it ended with instead of a last chunk.
    """

    prompt: str
    gateway_id: str
    began_s: float
    engine_id: str | None = None
    artifact_ids: set[ArtifactId] = dataclasses.field(default_factory=set)
    revision: Revision | None = None
    token_ids: list[int] = dataclasses.field(default_factory=list)
    ended_s: float | None = None
    error: HalogenError | None = None

    @property
    def is_running(self) -> bool:
        return self.ended_s is None and self.engine_id is not None

    @property
    def has_answered(self) -> bool:
        return self.ended_s is not None and self.error is None

    def take(self, source: Provenance) -> None:
        """A chunk says where it comes from."""
        self.engine_id, self.revision = source.engine_id, source.revision
        self.artifact_ids.add(source.artifact_id)

    def passes(self, member: Member) -> bool:
        """Whether it went through that process, or had not got so far as to say where."""
        return self.gateway_id == member.id or self.engine_id in {member.id, None}

    def is_right(self, answers: Answers) -> bool:
        """Whether it ended in the whole answer of a quiet run, or in a status after a part of that."""
        expected = answers[self.prompt]
        if isinstance(self.error, DeadlinePassed):
            return False  # it hung
        whole = tuple(self.token_ids)
        return whole == expected if self.error is None else whole == expected[: len(whole)]


class Load:
    """The requests of so far."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self._news = asyncio.Condition()

    @property
    def ended(self) -> int:
        """How many have come to their end, for better or worse."""
        return sum(stream.ended_s is not None for stream in self.streams)

    async def until(self, condition: Callable[[list[Stream]], bool], timeout_s: float = TIMEOUT_S) -> None:
        """Returns when the streams meet the condition; asks after every chunk and every end."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: condition(self.streams))

    def answers(self) -> Answers:
        """What each prompt was answered, all without a failure."""
        assert [None] * len(self.streams) == [stream.error for stream in self.streams]
        return {stream.prompt: tuple(stream.token_ids) for stream in self.streams}

    async def ask(self, client: Client, stream: Stream, max_tokens: int) -> None:
        """Runs one request to its end."""
        self.streams.append(stream)
        try:
            async with client.generate(
                stream.prompt,
                model=MODEL,
                max_tokens=max_tokens,
                temperature=0,
                ignore_eos=True,
                timeout_s=TIMEOUT_S,
            ) as chunks:
                async for chunk in chunks:
                    if chunk.provenance is not None:
                        stream.take(chunk.provenance)
                    stream.token_ids.extend(chunk.token_ids)
                    await self._tell()
        except HalogenError as failure:
            stream.error = failure
        stream.ended_s = time.monotonic()
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def is_whole(fleet: Fleet, streams: Iterable[Stream]) -> bool:
    """Whether every gateway and every engine has answered one of them."""
    answered = [stream for stream in streams if stream.has_answered]
    gateways, engines = ({member.id for member in fleet.of(role)} for role in ("gateway", "engine"))
    return gateways <= {stream.gateway_id for stream in answered} and engines <= {
        stream.engine_id for stream in answered
    }


async def quiet_answers(fleet: Fleet, prompts: list[str], max_tokens: int) -> Answers:
    """What each prompt's answer is when nothing happens."""
    quiet = Load()
    async with Client(
        fleet.gateway, max_tries=100
    ) as client:  # what has just been started anew is waited for
        for prompt in prompts:
            await quiet.ask(client, Stream(prompt=prompt, gateway_id="", began_s=0.0), max_tokens)
    return quiet.answers()


async def answers_together(fleet: Fleet, prompts: list[str], max_tokens: int) -> Answers:
    """What the prompts' answers are when all are asked at once."""
    together = Load()
    async with Client(fleet.gateway, max_tries=100) as client, asyncio.TaskGroup() as group:
        for prompt in prompts:
            stream = Stream(prompt=prompt, gateway_id="", began_s=0.0)
            group.create_task(together.ask(client, stream, max_tokens))
    return together.answers()


@contextlib.asynccontextmanager
async def load(fleet: Fleet, answers: Answers, *, per_gateway: int) -> AsyncIterator[Load]:
    """Keeps so many requests under way on every gateway; at the end the last ones are waited for."""
    running, ending = Load(), asyncio.Event()
    turns = itertools.cycle(answers)

    async def work(gateway: Member) -> None:
        backoff = Backoff()
        async with Client(gateway.address) as client:
            while not ending.is_set():
                prompt = next(turns)
                stream = Stream(prompt=prompt, gateway_id=gateway.id, began_s=time.monotonic())
                await running.ask(client, stream, len(answers[prompt]))
                if stream.error is not None:
                    await backoff.pause()
                else:
                    backoff.reset()

    async with asyncio.TaskGroup() as group:
        for gateway in fleet.of("gateway"):
            for _ in range(per_gateway):
                group.create_task(work(gateway))
        try:
            yield running
        finally:
            ending.set()
