"""Requests that come at their own times, whatever becomes of those before them, and how each was answered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

from bench.ask import Ask
from services.common.client import Client
from services.common.errors import HalogenError
from services.common.ids import ArtifactId

MODEL: Final = "swapped"
AT_ONCE: Final = 16  # requests under way while capacity is measured
TIMEOUT_S: Final = 600.0
_TEMPERATURE: Final = 0.8
_WARMING_SHARE: Final = 0.2  # of a measurement of capacity; what comes then does not count


class Delivery(NamedTuple):
    """Tokens that came together.

    Attributes:
        at_s: Seconds since the epoch, as in the processes' logs.
        waited_s: Since the stream's last ones; None of its first ones.
    """

    at_s: float
    tokens: int
    waited_s: float | None


@dataclasses.dataclass(slots=True)
class Answer:
    """What became of a request.

    Attributes:
        artifact_ids: What its chunks named, first to last: the same each time, if all is well.
        error: What it ended with instead of a last chunk.
    """

    ask: Ask
    begun_s: float
    artifact_ids: list[ArtifactId] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    deliveries: list[Delivery] = dataclasses.field(default_factory=list)
    error: HalogenError | None = None

    @property
    def is_sound(self) -> bool:
        """Whether it came to its end, from one artifact."""
        return self.error is None and len(set(self.artifact_ids)) == 1

    def take(self, token_ids: Sequence[int], at_s: float) -> None:
        """Tokens have come."""
        waited_s = at_s - self.deliveries[-1].at_s if self.deliveries else None
        self.deliveries.append(Delivery(at_s, len(token_ids), waited_s))
        self.token_ids.extend(token_ids)


class Load:
    """Requests of one model, and their answers.

    Args:
        client: Asks once: what a server refuses is a failure.
        asks: What is asked for, in an order of chance.
        chance: Chooses, and spaces arrivals.
    """

    def __init__(self, client: Client, asks: Sequence[Ask], chance: random.Random) -> None:
        self.answers: list[Answer] = []
        self._client = client
        self._asks = asks
        self._chance = chance
        self._salts = itertools.count()
        self._under_way = 0
        self._quiet = asyncio.Event()

    def again(self) -> Load:
        """The same, with no answers yet."""
        return Load(self._client, self._asks, self._chance)

    @property
    def tokens_per_request(self) -> float:
        return sum(ask.tokens for ask in self._asks) / len(self._asks)

    @property
    def deliveries(self) -> Iterator[Delivery]:
        """In no order."""
        return itertools.chain.from_iterable(answer.deliveries for answer in self.answers)

    async def ask(self, ask: Ask, salt: str = "") -> Answer:
        """Runs one request to its end, for better or worse; with a salt of its own, all of its prompt is computed."""
        answer = Answer(ask, time.time())
        self.answers.append(answer)
        with self._counted():
            await self._follow(answer, salt)
        return answer

    async def ask_any(self) -> Answer:
        """One of all; of every two, one finds what engines have kept of its prompt."""
        number = next(self._salts)
        return await self.ask(self._chance.choice(self._asks), f"{id(self)}-{number}" if number % 2 else "")

    async def quiet(self) -> None:
        """Returns once no request is under way."""
        if self._under_way:
            self._quiet.clear()
            await self._quiet.wait()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._quiet.set()

    async def _follow(self, answer: Answer, salt: str) -> None:
        ask = answer.ask
        stream = self._client.generate(
            ask.prompt,
            model=MODEL,
            max_tokens=ask.tokens,
            temperature=0.0 if ask.seed is None else _TEMPERATURE,
            seed=ask.seed or 0,
            ignore_eos=True,
            cache_salt=salt,
            timeout_s=TIMEOUT_S,
        )
        try:
            async with stream:
                async for chunk in stream:
                    if chunk.provenance is not None:
                        answer.artifact_ids.append(chunk.provenance.artifact_id)
                    if chunk.token_ids:
                        answer.take(chunk.token_ids, time.time())
        except HalogenError as failure:
            answer.error = failure

    async def capacity(self, seconds: float) -> float:
        """Tokens per second that are answered to as many requests at once as the engine profits from."""
        load, begun_s = self.again(), time.time()
        ending = asyncio.Event()

        async def work() -> None:
            while not ending.is_set():
                await load.ask_any()

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
            await asyncio.sleep(seconds)
            ended_s = time.time()
            ending.set()
        counted_s = begun_s + _WARMING_SHARE * seconds
        counted = sum(each.tokens for each in load.deliveries if counted_s <= each.at_s < ended_s)
        return counted / (ended_s - counted_s)

    @contextlib.asynccontextmanager
    async def arriving(self, per_s: float) -> AsyncIterator[None]:
        """So many new requests a second on average while the scope lasts; those under way are then waited for."""
        async with asyncio.TaskGroup() as group:
            arrivals = group.create_task(self._arrive(per_s, group))
            try:
                yield
            finally:
                arrivals.cancel()

    async def _arrive(self, per_s: float, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        at_s = loop.time()
        while True:
            at_s += self._chance.expovariate(per_s)
            await asyncio.sleep(at_s - loop.time())
            group.create_task(self.ask_any())
