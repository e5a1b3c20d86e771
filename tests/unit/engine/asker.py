"""Asks one engine the same prompts in every company there is, and keeps what it was told bit for bit."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from collections.abc import Sequence as Ordered
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from services.common.ids import TicketId
from services.common.kv import BLOCK_TOKENS
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.kernels.protocol import Kernels
from services.engine.loaded_model import ModelLoading, ModelOnArena
from services.engine.model.weights import DTypeChoice
from services.engine.preemption import Way as SetBackBy
from tests.unit.engine.decoding import Prompt, prepared
from tests.unit.engine.fakes import generation, request
from tests.unit.engine.nuisance import Nuisance
from tests.unit.engine.witness import Witness

NEW: Final = 12  # tokens of an answer
WHOLE: Final = 8192  # tokens of prompts in a step: all of them
_SWAP_BYTES: Final = 64 << 20
_SALT: Final = b"shared"


class Asked(NamedTuple):
    """A prompt, and how the tokens after it are chosen."""

    prompt: Prompt
    temperature: float = 0.0
    seed: int = 0


class Told(NamedTuple):
    """An answer: its tokens, a digest of the logits of each, and the bits of each one's logprob."""

    ids: tuple[int, ...]
    logits: tuple[bytes, ...]
    logprobs: bytes


class Way(NamedTuple):
    """How prompts are asked.

    Attributes:
        together: So many at a time.
        chunk_tokens: Most tokens of prompts in a step.
        finds_pages: Whether each finds the keys and values of its beginning.
        set_back: By what way each is set back while it is computed, twice; None for not at all.
    """

    together: int = 1
    chunk_tokens: int = WHOLE
    finds_pages: bool = False
    set_back: SetBackBy | None = None


class Asker:
    """One engine, one model.

    Args:
        model: The engine's, whose arena is the engine's own.
    """

    def __init__(self, engine: Engine, model: ModelOnArena) -> None:
        self.engine = engine
        self.witness = Witness(model)
        self.nuisance = Nuisance(engine)
        self.witness.under_way = lambda: tuple(engine._loop._stepper._jobs)
        self.witness.before = self.nuisance.meet
        self._generation = generation(model)
        self._block_bytes = model.block_bytes
        self._names = (f"r{number}" for number in itertools.count())

    async def ask(self, asked: Ordered[Asked], way: Way) -> list[list[Told]]:
        """What was told of each, once or more: where the last of a company are missing, it is made up of the first."""
        self.engine._loop._stepper._chunk_tokens = way.chunk_tokens
        self.nuisance.way = way.set_back
        self.witness.most_together = 0
        told: list[list[Told]] = [[] for _ in asked]
        count = -(-len(asked) // way.together) * way.together
        for start in range(0, count, way.together):
            places = [at % len(asked) for at in range(start, start + way.together)]
            answers = await asyncio.gather(*(self._ask(asked[at], way) for at in places))
            for at, answer in zip(places, answers, strict=True):
                told[at].append(answer)
        return told

    async def fill(self, asked: Ordered[Asked]) -> None:
        """From here on the keys and values of these prompts are kept."""
        self.nuisance.way = None
        for each in asked:
            await self._ask(each, Way(), cache_salt=_SALT)

    async def all_at_once(self, asked: Ordered[Asked]) -> list[Told]:
        """With tickets that promise no more than the prompts and one token."""
        return await asyncio.gather(*(self._ask(each, Way(), self.promise(each)) for each in asked))

    def promise(self, asked: Asked) -> int:
        """A ticket's bytes for a prompt and one token."""
        return (len(asked.prompt) // BLOCK_TOKENS + 1) * self._block_bytes

    async def _ask(
        self,
        asked: Asked,
        way: Way,
        promised_bytes: int | None = None,
        cache_salt: bytes | None = None,
    ) -> Told:
        name = next(self._names)
        ids, logprobs = list[int](), list[float]()
        wanted = request(
            name,
            asked.prompt,
            NEW,
            cache_salt=_SALT if way.finds_pages else cache_salt,
            temperature=asked.temperature,
            top_k=40 if asked.seed % 2 else 0,
            top_p=0.95,
            seed=asked.seed,
            logprobs=True,
        )
        async with self.engine.run(self._generation, wanted, TicketId(name), promised_bytes) as stream:
            if way.finds_pages:
                assert (len(asked.prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS == stream.cached_tokens
            async for piece in stream:
                ids += piece.token_ids
                logprobs += piece.logprobs
        if way.set_back:
            assert self.nuisance.times[name] >= 1
        bits = np.array(logprobs, np.float32).tobytes()
        return Told(tuple(ids), tuple(self.witness.seen.pop(name)), bits)


@contextlib.asynccontextmanager
async def asker(
    artifact: Path, kernels: Kernels, dtype: DTypeChoice, arena_bytes: int = 64 << 20
) -> AsyncIterator[Asker]:
    """An engine that checks its books after every step."""
    arena = Arena(arena_bytes)
    loading = ModelLoading(arena=arena, kernels=kernels, dtype=dtype, max_model_len=0)
    model = loading.load(prepared(artifact))
    engine = Engine(arena, chunk_tokens=WHOLE, max_batch=64, check_every_step=True, swap_bytes=_SWAP_BYTES)
    async with engine, asyncio.timeout(250):
        yield Asker(engine, model)
        engine.check()
