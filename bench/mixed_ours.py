"""``python -m bench.mixed_ours LOADER ARTIFACT_ID``: our engine without its wire at work, told by lines what to replay.

A line ``FROM TO`` has it replay the arrivals in one file and write what became of them to another. Whoever finds no
room in the engine waits in a line as a scheduler's queue has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import AsyncIterator
from typing import Final

from bench.arrivals import Arrival, prompt_of
from bench.lone_model import LoneModel, engine_on
from bench.mixed_program import Replayer, run_program
from bench.replay import Fate, Fill, Replay
from services.common.errors import Overloaded
from services.common.ids import RequestId, TicketId
from services.common.kv import BLOCK_TOKENS
from services.common.waiting_line import WaitingLine
from services.engine.engine import Engine
from services.engine.lending import artifact_of
from services.engine.sequence import Sampling, TokenRequest
from services.engine.token_stream import TokenStream

_LOOK_S: Final = 0.05
_numbers: Final = itertools.count()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A request that has come, and the turn that it waits for."""

    request: TokenRequest
    scope: contextlib.AsyncExitStack
    turn: asyncio.Future[TokenStream]


class Ours:
    """Replays arrivals through an engine; whoever asked leaves when he has what he wanted.

    Args:
        engine: Running, and nobody else's.
        lone: The model.
    """

    def __init__(self, engine: Engine, lone: LoneModel) -> None:
        self._engine = engine
        self._lone = lone
        self._line = WaitingLine[Waiting]()
        self._serving = asyncio.Lock()

    async def replay(self, arrivals: list[Arrival]) -> Replay:
        began_s, fills = time.perf_counter(), list[Fill]()
        prompts = [prompt_of(n, arrival, self._lone.model.vocab_size) for n, arrival in enumerate(arrivals)]
        looking = asyncio.create_task(self._look(began_s, fills))
        try:
            requests = zip(arrivals, prompts, strict=True)
            fates = await asyncio.gather(*(self._answer(*request, began_s) for request in requests))
        finally:
            looking.cancel()
        return Replay(list(fates), fills, time.perf_counter() - began_s)

    async def _answer(self, arrival: Arrival, prompt: list[int], began_s: float) -> Fate:
        due_s = began_s + arrival.at_s
        await asyncio.sleep(due_s - time.perf_counter())
        sampling = Sampling(max_tokens=arrival.most)
        first_s, last_s = 0.0, 0.0
        async with contextlib.AsyncExitStack() as scope:
            stream = await self._let_in(prompt, sampling, scope)
            while stream.read_tokens < arrival.tokens:
                await anext(stream)
                last_s = time.perf_counter() - due_s
                first_s = first_s or last_s
        return Fate(arrival.is_long, first_s, last_s)

    async def _let_in(
        self, prompt: list[int], sampling: Sampling, scope: contextlib.AsyncExitStack
    ) -> TokenStream:
        number = next(_numbers)
        request = TokenRequest(id=RequestId(f"bench-{number}"), prompt=prompt, sampling=sampling)
        waiting = Waiting(request, scope, asyncio.get_running_loop().create_future())
        self._line.push(waiting, self._need_tokens(request), (0, number))
        await self._serve()
        return await waiting.turn

    def _need_tokens(self, request: TokenRequest) -> int:
        """As a scheduler sees it."""
        most = request.sampling.max_tokens
        return len(request.prompt) + min(
            most, self._engine.occupancy.expected(artifact_of(self._lone.model)) or most
        )

    async def _serve(self) -> None:
        """Lets in whoever is next, as far as the engine has room."""
        async with self._serving:
            while served := await self._next_served():
                self._line.serve(served)

    async def _next_served(self) -> Waiting | None:
        for waiting in self._line.candidates():
            request = waiting.request
            try:
                run = self._engine.run(self._lone, request, TicketId(request.id))
                waiting.turn.set_result(await waiting.scope.enter_async_context(run))
            except Overloaded:
                continue
            return waiting
        return None

    async def _look(self, began_s: float, fills: list[Fill]) -> None:
        """Notes how the arena stands; what those who have left held is free a step later."""
        while True:
            await self._serve()
            fills.append(self._fill(time.perf_counter() - began_s))
            await asyncio.sleep(_LOOK_S)

    def _fill(self, at_s: float) -> Fill:
        loans, block_bytes = self._engine.desk.loans, self._lone.model.block_bytes
        stored, taken, lent = (each * BLOCK_TOKENS // block_bytes for each in self._engine.desk.use)
        return Fill(at_s, stored, taken, lent, len(loans))


@contextlib.asynccontextmanager
async def _open(lone: LoneModel) -> AsyncIterator[Replayer]:
    async with engine_on(lone.arena) as engine:
        yield Ours(engine, lone)


if __name__ == "__main__":
    run_program(__doc__, sys.argv[1:], _open)
