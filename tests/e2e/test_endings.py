"""SIGTERM of every kind of process under streams, and an etcd that is away: nobody loses a token."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from services.common.client import Client
from services.common.errors import Unavailable
from tests.e2e.fleet import PATIENCE_S, Fleet, Member, fleet
from tests.e2e.streams import MODEL, Answers, Load, Stream, answers_together, load, quiet_answers
from tests.tiny_checkpoints import TinyShape, make_tiny_artifact

ROLES: Final = ("gateway", "scheduler", "loader", "engine", "etcd")
PROMPTS: Final = [f"Once there were {count} dogs and" for count in ("two", "three", "four", "nine")]
TOKENS: Final = 1_900
SHORTER: Final = 900  # still far from done when a signal comes
STREAMS: Final = 8
OUTAGE_S: Final = 30.0  # longer than every lease

pytestmark = pytest.mark.xdist_group("fleet")  # one at a time: each is many processes


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    made, _ = make_tiny_artifact(tmp_path / "model", TinyShape(max_position_embeddings=2048), seed=5)
    return made


@pytest.fixture
async def one_of_each(tmp_path: Path, artifact: Path) -> AsyncIterator[Fleet]:
    async with fleet(tmp_path, {}) as system:
        await system.publish(MODEL, artifact)
        await system.stands()
        yield system


@pytest.mark.timeout(600)
async def test_sigterm_under_8_streams(one_of_each: Fleet) -> None:
    """All finish; the process ends with status 0; what comes meanwhile is served, or told when to come back.

    Fault injection: call `InFlight.end_all` before the drain in `RpcServer.stop`.
    """
    answers = await quiet_answers(one_of_each, PROMPTS, SHORTER)
    for role in ROLES:
        await end_one(one_of_each, role, answers)
        await one_of_each.stands()
        assert answers == await answers_together(one_of_each, PROMPTS, SHORTER)


async def end_one(system: Fleet, role: str, answers: Answers) -> None:
    (victim,) = system.of(role)
    asked = Load()
    async with contextlib.AsyncExitStack() as scope:
        client = await scope.enter_async_context(Client(system.gateway, max_tries=1))
        group = await scope.enter_async_context(asyncio.TaskGroup())
        for number in range(STREAMS):
            stream = Stream(prompt=PROMPTS[number % len(PROMPTS)], gateway_id="gateway-1", began_s=0.0)
            group.create_task(asked.ask(client, stream, SHORTER))
        await asked.until(lambda streams: STREAMS == sum(stream.is_running for stream in streams))
        victim.send(signal.SIGTERM)
        refused = await refusals(client, asked)
    assert [None] * STREAMS == [stream.error for stream in asked.streams]
    assert [] == [stream for stream in asked.streams if not stream.is_right(answers)]
    assert all(refusal.retry_after_s is not None for refusal in refused), refused
    assert refused or role in {
        "loader",
        "scheduler",
        "etcd",
    }  # a scheduler is back before anybody gives it up
    await told_of_death(system, victim, "0" if role != "etcd" else r"0|-15")


async def refusals(client: Client, asked: Load) -> list[Unavailable]:
    """What new requests are told until the eight have ended."""
    refused = []
    while any(stream.ended_s is None for stream in asked.streams):
        try:
            await client.generate(PROMPTS[0], model=MODEL, max_tokens=1, timeout_s=10).complete()
        except Unavailable as refusal:
            refused.append(refusal)
    return refused


async def told_of_death(system: Fleet, victim: Member, status: str) -> None:
    """Waits for the supervisor to say how the process ended."""
    async with asyncio.timeout(PATIENCE_S):
        said = await system.deaths.get()
    assert re.fullmatch(rf"{victim.id} ended with status ({status});.*", said)


@pytest.mark.timeout(300)
async def test_s_e10_an_etcd_that_is_away_loses_no_inference(one_of_each: Fleet, artifact: Path) -> None:
    """It stands still until every lease is over, under load; then a publish works. No request fails.

    Fault injection: let `EngineInstance`s go when their records do, in services/scheduler/engines.py.
    """
    (etcd,) = one_of_each.of("etcd")
    answers = await quiet_answers(one_of_each, PROMPTS, TOKENS)
    async with load(one_of_each, answers, per_gateway=4) as running:
        await running.until(lambda streams: any(stream.is_running for stream in streams))
        etcd.send(signal.SIGSTOP)
        await asyncio.sleep(OUTAGE_S)
        etcd.send(signal.SIGCONT)
        again = await one_of_each.publish("another", artifact)
        back_s = time.monotonic()
        await running.until(lambda streams: any(one.began_s > back_s and one.has_answered for one in streams))
    assert again.revision == 1
    assert [] == [stream for stream in running.streams if stream.error or not stream.is_right(answers)]
