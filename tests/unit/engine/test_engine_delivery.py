"""What a step gave cannot be told: whoever waits for it hears of an end, and nothing is kept from anybody."""

from __future__ import annotations

import asyncio
import collections
from typing import Any, Final

import pytest

from services.common.errors import InternalError
from services.common.ids import TicketId
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.occupancy import Occupancy
from services.engine.prefix_cache import Prefix
from services.engine.stepper import FinishReason
from services.engine.token_stream import TokenStream
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, generation, request

PROMPT: Final = tuple(range(1, 20))  # more than a page
TICKET: Final = TicketId("t")


def engine(*, checks: bool = True) -> Engine:
    return Engine(Arena(64 * BLOCK_BYTES), chunk_tokens=512, max_batch=64, check_every_step=checks)


async def read(stream: TokenStream) -> FinishReason | None:
    return [piece.finish async for piece in stream][-1]


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
    """The next call of that method raises; those after it are as they were."""
    sound = getattr(owner, name)

    def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr(owner, name, sound)
        raise RuntimeError("injected")

    monkeypatch.setattr(owner, name, fail)


async def freed(running: Engine) -> None:
    """Returns once the step loop has let go of all."""
    async with running.run(generation(CountingModel()), request("last", prompt=(5,))) as stream:
        await read(stream)


# Fault injection: turns red when `Engine._take` lets what `tell` raises pass.
@pytest.mark.parametrize("max_tokens", [1, 9])
@pytest.mark.parametrize("fault", [(TokenStream, "push"), (Prefix, "add")])
async def test_a_token_that_cannot_be_told_ends_its_stream(
    monkeypatch: pytest.MonkeyPatch, fault: tuple[type[Any], str], max_tokens: int
) -> None:
    """Be it the last one or not: its request fails as one of a failed step, counts as such, and gives all back."""
    async with engine() as running:
        made = generation(CountingModel())
        fail_once(monkeypatch, *fault)
        asked = request(prompt=PROMPT, max_tokens=max_tokens, cache_salt=b"")
        async with running.run(made, asked, TICKET) as stream, asyncio.timeout(10):
            with pytest.raises(InternalError):
                await read(stream)
        await freed(running)
        assert (1, 1) == (running.ended["step_failed"], running.ended["length"])
        assert (0, 0, ()) == (running.arena.pool.used_bytes, made.users, tuple(running.occupancy.tickets))
        running.check()


async def test_others_of_the_same_step_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three that run together fails; the two others have their whole answers.

    Fault injection: turns red when `Engine._deliver` stops at the first that fails.
    """
    async with engine() as running, asyncio.timeout(10):
        made = generation(CountingModel())
        fail_once(monkeypatch, TokenStream, "push")

        async def ask(name: str) -> FinishReason | str | None:
            async with running.run(made, request(name, prompt=(1,), max_tokens=20)) as stream:
                try:
                    return await read(stream)
                except InternalError as failure:
                    return failure.reason

        ends = await asyncio.gather(*map(ask, "abc"))
    assert {"STEP_FAILED": 1, FinishReason.LENGTH: 2} == collections.Counter(ends)


async def test_what_cannot_be_given_back_ends_its_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of what it holds goes back all the same: its id, its ticket, its use of the generation.

    Fault injection: turns red when `Engine._close` lets what the resources raise pass.
    """
    async with engine(checks=False) as running, asyncio.timeout(10):
        made = generation(CountingModel())
        fail_once(monkeypatch, Occupancy, "close")
        async with running.run(made, request(prompt=PROMPT), TICKET) as stream:
            with pytest.raises(InternalError):
                await read(stream)
        assert (0, 0) == (running.arena.pool.used_bytes, made.users)
        async with running.run(made, request()) as stream:
            assert FinishReason.LENGTH is await read(stream)


async def test_books_that_are_wrong_end_all_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is given another token out of memory that nobody knows the owner of.

    Fault injection: turns red when `Engine._check_books` only logs.
    """
    async with engine() as running, asyncio.timeout(10):
        fail_once(monkeypatch, Engine, "check")
        async with running.run(generation(CountingModel()), request(max_tokens=40)) as stream:
            with pytest.raises(InternalError):
                await read(stream)
        await freed(running)
        running.check()
