"""What an orchestrator is told while weights are swapped: of what serves, not of what comes."""

from __future__ import annotations

import asyncio
import json
import statistics
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from services.common.client import Client
from services.common.errors import PreconditionFailed
from services.engine.generation import Generation
from services.engine.loaded_model import ModelOnArena
from services.engine.mapping import populate
from services.engine.model.graph_check import check_graph
from services.engine.ragged import Ragged
from services.engine.warm_model import WarmModel
from services.engine.warm_up import warm_up
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, FAILED, operator
from tests.scenarios.test_swap_faults import SAMPLED_S, always_ready
from tests.scenarios.test_swapping import TICKETS, ask
from tests.scrape import get, scrape

AT_ONCE: Final = {"ticket_ttl_s": 0.05}
CHECK: Final = "/healthz?check=checkpoint"
ROUNDS: Final = 25
MOST_GAP_S: Final = 10.0  # generous: others may have this machine's cores
Start = Callable[..., Any]


async def places(system: Cluster) -> dict[str, str]:
    """Where engine and gateway answer over HTTP."""
    async with system.control() as control:
        processes = (await control.status(10)).processes
    return {each.role: each.http_address for each in processes if each.role in {"engine", "gateway"}}


async def told(place: str, path: str) -> tuple[int, dict[str, Any]]:
    status, body = await get(place, path)
    return status, json.loads(body)


async def until_told(place: str, expected: dict[str, Any]) -> dict[str, Any]:
    """What its check says once it has heard of all that; it is sound all the while."""
    async with asyncio.timeout(30):
        while True:
            code, health = await told(place, CHECK)
            assert 200 == code
            if expected.items() <= health.items():
                return health


async def until_ready(system: Cluster) -> None:
    """Returns when engine and gateway are."""
    async with asyncio.timeout(30):
        for place in (await places(system)).values():
            while 200 != (await told(place, "/readyz"))[0]:
                pass


async def test_r_b7_s_e5_a_slow_candidate_that_fails_disturbs_no_probe(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is held up in the middle of its load every probe answers for what serves; also once it has failed.

    Fault injection: turns red (the probes never answer) when `GenerationLoad._make` builds the model without a thread,
    when `Generations.missing` is about candidates, or when `checkpoint_health` is not sound for the sake of one.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    first = await system.publish("m", stories["stories-v1"])
    await until_ready(system)
    there, held, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def hold(*_: object) -> None:
        there.call_soon_threadsafe(held.set)
        release.wait(20)
        raise PreconditionFailed("another model", reason="GRAPH_MISMATCH")

    async def look(status: str, seq: int) -> None:
        for place in (await places(system)).values():
            code, ready = await told(place, "/readyz")
            assert (200, {"m@stable": True}) == (code, ready["names"])
            assert 200 == (await told(place, "/livez"))[0]
            health = await until_told(place, {"status": status, "active_model": "m", "checkpoint_seq": seq})
            assert 0 < health["memory_usage_percent"] <= 100
            assert health["last_swap_ms"] == health["last_swap_duration_ms"] >= 0
            assert health["last_swap_age_ms"] >= 0

    async with system.control() as control:
        who = operator(system, control)
        [second] = await who.register([stories["stories-v2"]])
        with monkeypatch.context() as held_up:
            held_up.setattr("services.engine.loaded_model.populate", hold)
            try:
                revision = await who.publish(second)
                await held.wait()
                for _ in range(3):
                    await look("ok", first.revision)
            finally:
                release.set()
            assert FAILED == (await who.end(revision)).state
        await look("degraded", first.revision)
        [engine] = [each for each in (await control.status(10)).processes if each.role == "engine"]
        [progress] = engine.progress
        assert (first.revision, revision + 1, "GRAPH_MISMATCH") == (
            progress.applied_sequence_id,
            progress.expected_next_id,
            progress.last_error.reason,
        )
        assert APPLIED == (await who.end(await who.publish(second))).state
    await look("ok", revision + 1)
    metrics = await scrape((await places(system))["engine"])
    assert revision + 1 == metrics.value("halogen_engine_applied_revision", model="m", cohort="stable")
    assert 0 < metrics.value("halogen_engine_last_swap_seconds", model="m", cohort="stable")


class Sampler:
    """Asks for every probe of engine and gateway every 20 ms.

    Attributes:
        codes: What was answered, in order.
        gaps_s: How long each round took, with the pause before it.
    """

    def __init__(self, places: Collection[str]) -> None:
        self.codes: list[int] = []
        self.gaps_s: list[float] = []
        self._places = places

    async def sample(self) -> None:
        """For ever."""
        last_s = time.monotonic()
        async with aiohttp.ClientSession() as session:
            while True:
                for place in self._places:
                    for path in ("/livez", "/readyz", CHECK):
                        async with session.get(f"http://{place}{path}") as answer:
                            self.codes.append(answer.status)
                now_s = time.monotonic()
                self.gaps_s.append(now_s - last_s)
                last_s = now_s
                await asyncio.sleep(SAMPLED_S)

    def hold(self) -> None:
        """Keeps the calling thread at its work until so many more rounds were answered."""
        rounds, deadline_s = len(self.gaps_s), time.monotonic() + 30
        while len(self.gaps_s) < rounds + ROUNDS:
            assert time.monotonic() < deadline_s, "no probe was answered meanwhile"
            time.sleep(0.005)


async def test_r_b7_every_probe_is_answered_through_a_whole_swap(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load, the first steps and disposal each last until 25 more rounds of probes were answered, all of them with 200.

    Fault injection: turns red when `GenerationLoad._make` builds without a thread, steps are computed on the event loop, or
    Disposal lets go without a thread.
    """
    system: Cluster = await start("in_process", engine=AT_ONCE, scheduler=AT_ONCE)
    await system.publish("m", stories["stories-v1"])
    await until_ready(system)
    sampler, held = Sampler((await places(system)).values()), list[str]()

    def holding(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def hold(*args: Any, **more: Any) -> Any:
            if name not in held:  # once each
                held.append(name)
                sampler.hold()
            return real(*args, **more)

        return hold

    monkeypatch.setattr("services.engine.loaded_model.populate", holding("load", populate))
    monkeypatch.setattr(WarmModel, "forward", holding("warm-up", WarmModel.forward))
    monkeypatch.setattr(Generation, "let_go", holding("disposal", Generation.let_go))
    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(sampler.sample())
        await system.publish("m", stories["stories-v2"])
        async with asyncio.timeout(60):
            while "disposal" not in held:  # noqa: ASYNC110  # a thread tells nobody
                await asyncio.sleep(SAMPLED_S)
            rounds = len(sampler.gaps_s)
            while len(sampler.gaps_s) < rounds + ROUNDS:  # noqa: ASYNC110  # a thread tells nobody
                await asyncio.sleep(SAMPLED_S)
        sampling.cancel()
    assert ["load", "warm-up", "disposal"] == held
    assert {200} == set(sampler.codes)
    assert 3 * ROUNDS <= len(sampler.gaps_s)
    assert max(sampler.gaps_s) < MOST_GAP_S


async def test_r_e1_ready_through_twenty_swaps_of_which_ten_fail(
    start: Start,
    stories: dict[str, Path],
    three_blocks: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each artifact fails once before it is served; engine and gateway, asked every 20 ms, are ready all the time.

    Fault injection: turns red when `Generations.missing` is about candidates, or when an engine drains what serves
    before its successor is ACTIVE.
    """
    system: Cluster = await start("in_process", engine=AT_ONCE, scheduler=AT_ONCE)
    await system.publish("m", stories["stories-v1"])
    await until_ready(system)
    fails = True

    def check(*args: Any) -> None:
        if fails:
            raise PreconditionFailed("another model", reason="GRAPH_MISMATCH")
        check_graph(*args)

    monkeypatch.setattr("services.engine.loaded_model.check_graph", check)
    async with system.control() as control:
        who = operator(system, control)
        turn = [three_blocks, stories["stories-v2"], stories["stories-v1"]]
        artifacts = await who.register(turn)
        async with always_ready(system):
            for swap in range(20):
                fails = swap % 2 == 0
                outcome = await who.end(await who.publish(artifacts[swap // 2 % 3]))
                assert (FAILED if fails else APPLIED) == outcome.state


async def test_r_e5_ready_means_warm(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is ready before every kind of step has been computed; then the first request of all is answered, as fast as any.

    By count: one row, eight rows, a prompt longer than the request's, all before ready. Fault injection: turns red when a
    generation is ACTIVE before its warm-up, or `warm_up` returns at once, or computes its first round alone.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    warming, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **more: Any) -> Any:
        warming.set()
        await go_on.wait()
        return await warm_up(*args, **more)

    steps: list[tuple[int, int]] = []  # of every step: tokens, rows that are sampled
    forward = ModelOnArena.forward

    def counted(model: ModelOnArena, step: Ragged) -> Any:
        steps.append((len(step.token_ids), len(step.sample_rows)))
        return forward(model, step)

    monkeypatch.setattr("services.engine.generation_load.warm_up", slow)
    monkeypatch.setattr(ModelOnArena, "forward", counted)
    at = await places(system)
    async with asyncio.TaskGroup() as group:
        publishing = group.create_task(system.publish("m", stories["stories-v1"]))
        await warming.wait()
        assert {503} == {(await told(place, "/readyz"))[0] for place in at.values()}
        status, health = await told(at["engine"], CHECK)
        assert (503, "degraded", None) == (status, health["status"], health["active_model"])
        assert [] == steps
        go_on.set()
    artifact_id = publishing.result().artifact_id
    await until_ready(system)
    warmed, took_s = list(steps), []
    async with Client(system.gateway, max_tries=1) as client:
        for _ in range(6):
            begun_s = time.perf_counter()
            assert artifact_id == (await ask(client))[0]
            took_s.append(time.perf_counter() - begun_s)
    asked = steps[len(warmed) :]
    assert max(tokens for tokens, _ in asked) <= max(tokens for tokens, _ in warmed)
    assert {1, 8} <= {rows for _, rows in warmed}
    assert (1, 1) in warmed, "a token was decoded"
    assert took_s[0] < 5 * statistics.median(took_s[1:]) + 1


async def test_an_unknown_check_is_told_which_there_are(start: Start) -> None:
    """400, not 404: the path is right. Schedulers have none."""
    system: Cluster = await start("in_process")
    at = await places(system)
    assert (200, {"status": "ok", "checks": ["checkpoint"]}) == await told(at["engine"], "/healthz")
    status, body = await told(at["gateway"], "/healthz?check=checkpiont")
    assert (400, ["checkpoint"]) == (status, body["checks"])
    assert "'checkpiont'" in body["error"]
