"""``python -m bench.mixed_ours LOADER ARTIFACT_ID``: our engine without its wire at work, told by lines what to replay.

A line ``FROM TO`` has it replay the arrivals in one file and write what became of them to another. Whoever finds no
room in the engine waits in order of arrival, as in a scheduler's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from services.engine.engine import Engine
from services.engine.sequence import Sampling, TokenRequest
from services.engine.token_stream import TokenStream

_LOOK_S: Final = 0.05
_numbers: Final = itertools.count()


class Ours:
    """Replays arrivals through an engine.

    Args:
        engine: Running, and nobody else's.
        lone: The model.
        slack: How many times as long an answer may be as it is; whoever asked leaves when he has what he wanted.
    """

    def __init__(self, engine: Engine, lone: LoneModel, slack: int) -> None:
        self._slack = slack
        self._engine = engine
        self._lone = lone
        self._turn = asyncio.Lock()  # whoever came first has it
        self._room = asyncio.Event()  # somebody has gone

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
        number = next(_numbers)
        sampling = Sampling(max_tokens=self._slack * arrival.tokens)
        request = TokenRequest(id=RequestId(f"bench-{number}"), prompt=prompt, sampling=sampling)
        first_s, last_s = 0.0, 0.0
        async with contextlib.AsyncExitStack() as scope:
            stream = await self._let_in(request, TicketId(request.id), scope)
            while stream.read_tokens < arrival.tokens:
                await anext(stream)
                last_s = time.perf_counter() - due_s
                first_s = first_s or last_s
        self._room.set()
        return Fate(arrival.is_long, first_s, last_s)

    async def _let_in(
        self, request: TokenRequest, ticket_id: TicketId, scope: contextlib.AsyncExitStack
    ) -> TokenStream:
        async with self._turn:
            while True:
                self._room.clear()
                try:
                    return await scope.enter_async_context(self._engine.run(self._lone, request, ticket_id))
                except Overloaded:
                    with contextlib.suppress(
                        TimeoutError
                    ):  # what one who left early held is free a step later
                        await asyncio.wait_for(self._room.wait(), _LOOK_S)

    async def _look(self, began_s: float, fills: list[Fill]) -> None:
        while True:
            fills.append(self._fill(time.perf_counter() - began_s))
            await asyncio.sleep(_LOOK_S)

    def _fill(self, at_s: float) -> Fill:
        loans, block_bytes = self._engine.desk.loans, self._lone.model.block_bytes
        stored, taken, lent = (each * BLOCK_TOKENS // block_bytes for each in self._engine.desk.use)
        return Fill(at_s, stored, taken, lent, len(loans))


@contextlib.asynccontextmanager
async def _open(lone: LoneModel, slack: int) -> AsyncIterator[Replayer]:
    async with engine_on(lone.arena) as engine:
        yield Ours(engine, lone, slack)


if __name__ == "__main__":
    run_program(__doc__, sys.argv[1:], _open)
