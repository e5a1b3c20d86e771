"""As many engines as a publish asks for are ready before it is served; who is not is named, and then it fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from halogen.v1 import types_pb2
from services.common.errors import CorruptData
from services.engine.loaded_model import ModelOnArena, VerifiedWeights
from services.engine.servicer import EngineServicer
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, FAILED, Operator, operator, until_held
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
SHORT = {"ticket_ttl_s": 0.2, "kv_arena_bytes": 1 << 20}
SECOND_MAX_LEN = 128  # by which the second engine is known


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Six tiny artifacts."""
    folder = tmp_path_factory.mktemp("six")
    return [make_tiny_artifact(folder, seed=seed)[0] for seed in range(1, 7)]


@contextlib.asynccontextmanager
async def two_engines(start: Start) -> AsyncIterator[tuple[Cluster, Operator]]:
    """engine-1, and engine-2 on the same loader."""
    first = {"id": "engine-1", **SHORT}
    system: Cluster = await start("in_process", engine=first, scheduler={"ticket_ttl_s": 0.2})
    assert system.another is not None
    second = system.another("engine", id="engine-2", max_model_len=SECOND_MAX_LEN, **SHORT)
    async with second, system.control() as control:
        yield system, operator(system, control)


class Second:
    """The second engine's loads: each waits for `go`, or fails while `is_broken`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_broken = False
        self.go: asyncio.Event | None = None
        self._build = VerifiedWeights.build
        self._loop = asyncio.get_running_loop()

        def built(verified: VerifiedWeights, stop: threading.Event) -> ModelOnArena:
            if verified._loading.max_model_len == SECOND_MAX_LEN:
                self._begin()
            return self._build(verified, stop)

        monkeypatch.setattr(VerifiedWeights, "build", built)

    def _begin(self) -> None:
        """In the load's thread."""
        if self.is_broken:
            raise CorruptData("it is torn")
        if self.go:
            asyncio.run_coroutine_threadsafe(self.go.wait(), self._loop).result(60)


@pytest.fixture
async def second(monkeypatch: pytest.MonkeyPatch) -> Second:
    return Second(monkeypatch)


async def test_r_b1_nothing_is_served_before_all_are_ready(
    start: Start, artifacts: list[Path], second: Second
) -> None:
    """Five updates in a row, each held up by one of two engines: what is served waits for both, every time.

    Fault injection: turns red when `steps_due` counts engines that are ACTIVE at an earlier revision.
    """
    async with two_engines(start) as (_, me):
        for revision, artifact_id in enumerate(await me.register(artifacts[:5]), start=1):
            second.go = asyncio.Event()
            await me.publish(artifact_id, min_ready=2)
            await me.until_waiting_for(revision, ["engine-2"])
            assert revision - 1 == (await me.cohort()).serving_revision
            second.go.set()
            assert APPLIED == (await me.end(revision)).state
            assert [] == list((await me.cohort()).waiting_for)


async def test_with_two_that_must_be_ready_both_return_when_one_fails(
    start: Start, artifacts: list[Path], second: Second
) -> None:
    """What was served serves on, and the engine that had switched lets the candidate go.

    Fault injection: turns red when `Assignments` does not look at a target's failure.
    """
    async with two_engines(start) as (system, me):
        old, new = await me.register(artifacts[:2])
        await me.publish(old, min_ready=2)
        assert APPLIED == (await me.end(1)).state
        second.is_broken = True
        await me.publish(new, min_ready=2)
        outcome = await me.end(2)
        assert (FAILED, "CORRUPT_DATA") == (outcome.state, outcome.failure.reason)
        assert types_pb2.STAGE_ALLOCATION == outcome.failure.stage
        assert "too few can serve m: it is torn" in outcome.failure.message
        await until_held(me, {("engine-1", old), ("engine-2", old)})
        assert old == (await _answer(system)).artifact_id
        cohort = await me.cohort()
        assert (2, 1, "CORRUPT_DATA") == (
            cohort.desired_revision,
            cohort.serving_revision,
            cohort.last_error.reason,
        )


async def test_with_one_that_must_be_ready_the_failing_one_is_waited_for_and_gets_no_tickets(
    start: Start, artifacts: list[Path], second: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other answers all; published anew, the one that was mended takes its part again."""
    asked = _count_tickets(monkeypatch)
    async with two_engines(start) as (system, me):
        old, new = await me.register(artifacts[:2])
        await me.publish(old, min_ready=2)
        await me.end(1)
        second.is_broken = True
        await me.publish(new)
        assert APPLIED == (await me.end(2)).state
        assert ["engine-2"] == list((await me.cohort()).waiting_for)
        asked.clear()
        assert [new] * 8 == [(await _answer(system)).artifact_id for _ in range(8)]
        assert {"engine-1": 8} == asked
        second.is_broken = False
        await me.publish(new, min_ready=2)
        assert APPLIED == (await me.end(3)).state
        assert [] == list((await me.cohort()).waiting_for)


async def test_r_b4_an_engine_that_is_not_there_is_named_and_then_the_publish_fails(
    start: Start, artifacts: list[Path], second: Second
) -> None:
    """Who had what is served is missed; the publish ends when its time is over, and everybody returns.

    Fault injection: turns red when RolloutWriter sets no timer, or `progress` leaves out `away`.
    """
    async with two_engines(start) as (system, me):
        assert system.another is not None
        old, new = await me.register(artifacts[:2])
        async with system.another("engine", id="engine-3", **SHORT):
            await me.publish(old, min_ready=3)
            assert APPLIED == (await me.end(1)).state
        second.go = asyncio.Event()
        await me.publish(new, min_ready=3)
        await me.until_waiting_for(2, ["engine-2", "engine-3"])
        second.go.set()
        await me.until_waiting_for(2, ["engine-3"])
        await me.publish(new, min_ready=3, timeout_ms=1)
        outcome = await me.end(3)
        assert (types_pb2.STAGE_COMMIT, "WAITED_FOR") == (outcome.failure.stage, outcome.failure.reason)
        assert outcome.failure.message.endswith("engine-3")
        await until_held(me, {("engine-1", old), ("engine-2", old)})
        assert old == (await _answer(system)).artifact_id


def _count_tickets(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each engine was asked for tokens."""
    asked: Counter[str] = Counter()
    generate = EngineServicer.GenerateTokens

    def counted(servicer: EngineServicer, *arguments: Any) -> Any:
        asked[servicer._engine_id] += 1
        return generate(servicer, *arguments)

    monkeypatch.setattr(EngineServicer, "GenerateTokens", counted)
    return asked


async def _answer(system: Cluster) -> Any:
    async with system.client() as client:
        answer = await client.generate([3, 4, 5], max_tokens=2).complete()
    return answer.provenance
