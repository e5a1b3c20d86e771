"""A candidate that fails, at every stage: the old one answers as before, and the engine says where and why."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import pytest

from halogen.v1 import types_pb2
from services.cli import publish
from services.cli.console import CommandError, byte_progress
from services.cli.control_client import Order
from services.cli.published import Published
from services.common.errors import CorruptData, Overloaded, PreconditionFailed
from services.common.ids import ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Failure, IntentRecord, PublishState, Stage
from services.engine.engine import Engine
from services.engine.lender import LoadedModel
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, FAILED, operator, until_held
from tests.scenarios.test_swapping import TICKETS, ask
from tests.scenarios.test_weights import weights_of_loader
from tests.tiny_checkpoints import TinyShape, make_tiny_artifact

SAMPLED_S: Final = 0.02
TIMEOUT_MS: Final = 4_000
ORDER: Final = Order("m", "stable", "", who="test", why="test")
Start = Callable[..., Any]


class Fault(NamedTuple):
    """What is made to fail, and how an engine is to name it."""

    where: str
    error: Exception
    stage: Stage
    reason: str


FAULTS: Final = {
    "fetch": Fault(
        "services.engine.loader_client.LoaderClient.prepare",
        PreconditionFailed("in other versions", reason="SOURCE_CHANGED"),
        Stage.FETCH,
        "SOURCE_CHANGED",
    ),
    "digest": Fault(
        "services.engine.loader_client.LoaderClient.prepare",
        CorruptData("block 3 does not match its digest"),
        Stage.DIGEST,
        "CORRUPT_DATA",
    ),
    "graph": Fault(
        "services.engine.loaded_model.check_graph",
        PreconditionFailed("another model", reason="GRAPH_MISMATCH"),
        Stage.GRAPH,
        "GRAPH_MISMATCH",
    ),
    "guard": Fault(
        "services.engine.loaded_model.ModelLoading.check_memory",
        Overloaded("needs 2 + holds 3 > 4", reason="MEMORY_GUARD", retry_after_s=10),
        Stage.GUARD,
        "MEMORY_GUARD",
    ),
    "allocation": Fault("services.engine.loaded_model.populate", MemoryError(), Stage.ALLOCATION, "INTERNAL"),
    "warm-up": Fault(
        "services.engine.generation_load.warm_up",
        CorruptData("logits are not finite", reason="NOT_FINITE"),
        Stage.WARM_UP,
        "NOT_FINITE",
    ),
    "swap": Fault("services.engine.generations.Generations.activate", RuntimeError(), Stage.SWAP, "INTERNAL"),
}


@contextlib.asynccontextmanager
async def always_ready(system: Cluster) -> AsyncIterator[None]:
    """Asks engine and gateway every 20 ms, while the scope lasts, whether they are ready; they must be."""
    async with system.control() as control:
        processes = (await control.status(10)).processes
    places = [each.http_address for each in processes if each.role in {"engine", "gateway"}]
    seen: set[int] = set()
    begun = asyncio.Event()

    async def sample(session: aiohttp.ClientSession) -> None:
        while True:
            for place in places:
                async with session.get(f"http://{place}/readyz") as answer:
                    seen.add(answer.status)
            begun.set()
            await asyncio.sleep(SAMPLED_S)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        sampling = group.create_task(sample(session))
        await begun.wait()
        try:
            yield
        finally:
            sampling.cancel()
    assert {200} == seen


async def failure_of(system: Cluster, revision: int) -> Failure:
    """What is on record of a publish that has FAILED."""
    assert system.registry
    entry = await system.registry.get(keys.intent(ModelName("m"), Revision(revision)))
    assert entry
    intent = IntentRecord.decode(entry.value)
    assert intent.failure
    assert PublishState.FAILED is intent.state
    return intent.failure


# Fault injection: turns red when `Generations.failed` does not make FAILED of it (the publish waits for its 60 s), or
# `failure_of` leaves out the stage.
@pytest.mark.parametrize("name", FAULTS)
async def test_r_a7_s_c10_r_e11_a_candidate_that_fails_changes_nothing(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its state is terminal and names stage and reason; answers stay bit for bit, and ready stays 200."""
    fault = FAULTS[name]
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    await system.publish("m", stories["stories-v1"])
    async with system.client() as client:
        before = await ask(client)
        monkeypatch.setattr(fault.where, raising(fault.error))
        async with always_ready(system):
            with pytest.raises(CommandError, match="no engine can serve m"):
                await system.publish("m", stories["stories-v2"])
            assert before == await ask(client)
        async with system.control() as control:
            [cohort] = (await control.status(10)).cohorts
    assert (2, 1) == (cohort.desired_revision, cohort.serving_revision)
    failure = await failure_of(system, cohort.desired_revision)
    assert (fault.stage, fault.reason) == (failure.stage, failure.reason)


async def test_s_c10_a_cache_that_cannot_be_cleared_changes_nothing(
    start: Start, stories: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that of a candidate that failed nor that of what was replaced: each time what is served answers on.

    Fault injection: turns red when a generation's pages are forgotten outside of its disposal.
    """
    cleared: list[str] = []

    async def fail(_: Engine, model: LoadedModel) -> None:
        cleared.append(model.origin.artifact_id)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Engine, "forget", fail)
    system: Cluster = await start("in_process", engine={"id": "engine-1", **TICKETS}, scheduler=TICKETS)
    first = await system.publish("m", stories["stories-v1"])
    async with system.client() as client, system.control() as control, always_ready(system):
        before, me = await ask(client), operator(system, control)
        [second] = await me.register([stories["stories-v2"]])
        with monkeypatch.context() as warming:
            warming.setattr(FAULTS["warm-up"].where, raising(FAULTS["warm-up"].error))
            assert FAILED == (await me.end(await me.publish(second))).state
        assert before == await ask(client)
        assert 1 == (await me.cohort()).serving_revision
        for artifact_id in (second, first.artifact_id):
            assert APPLIED == (await me.end(await me.publish(artifact_id))).state
            assert artifact_id == (await ask(client))[0]
            await until_held(me, {("engine-1", artifact_id)})
        assert before == await ask(client)
    assert [second, first.artifact_id, second] == cleared


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


async def test_r_a7_s_c10_a_commit_that_waits_in_vain_changes_nothing(
    start: Start, stories: dict[str, Path]
) -> None:
    """The only engine has the candidate ACTIVE and two are asked for: the old one answers on, and the new one goes.

    Fault injection: turns red when `Assignments` does not look at a target's failure.
    """
    system: Cluster = await start("in_process", engine={"id": "engine-1", **TICKETS}, scheduler=TICKETS)
    await system.publish("m", stories["stories-v1"])
    async with system.client() as client, system.control() as control, always_ready(system):
        before, me = await ask(client), operator(system, control)
        [coming] = await me.register([stories["stories-v2"]])
        outcome = await me.end(await me.publish(coming, min_ready=2, timeout_ms=TIMEOUT_MS))
        assert (FAILED, types_pb2.STAGE_COMMIT) == (outcome.state, outcome.failure.stage)
        assert "1 more" in outcome.failure.message
        assert before == await ask(client)
        await until_held(me, {("engine-1", before[0])})
        assert before == await ask(client)


async def test_r_b9_a_byte_that_is_wrong_by_the_time_of_the_swap_is_found(
    start: Start, stories: dict[str, Path], three_blocks: Path
) -> None:
    """Sound when it was registered, spoilt in the store since: read anew, it is refused, and the old one serves.

    Fault injection: turns red when the loader's `BlockReader` compares no digest.
    """
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    await system.publish("m", stories["stories-v1"])
    async with system.client() as client, system.control() as control:
        before = await ask(client)
        with byte_progress() as progress:
            store = str(system.store)
            artifact_id = await publish.register(control, ORDER, three_blocks, store, progress)
        for weights in weights_of_loader(os.getpid()):
            if weights.name.startswith(artifact_id):
                weights.unlink()
        for packed in system.store.parents[1].glob(f"cache/**/{artifact_id}.*"):
            packed.unlink()
        [stored] = system.store.glob(f"**/{artifact_id}/model.halogen")
        content = bytearray(stored.read_bytes())
        content[-1] ^= 1
        stored.unlink()  # it may be the artifact's own file
        stored.write_bytes(content)
        revision = await control.publish(ORDER._replace(artifact_id=artifact_id))
        wanted = Published("m", "stable", artifact_id, revision)
        with pytest.raises(CommandError, match="digest"):
            await publish.wait_until_serving(control, wanted, 60)
        assert before == await ask(client)
    assert Stage.DIGEST is (await failure_of(system, revision)).stage


async def test_r_a21_an_artifact_of_another_size_is_a_generation_of_its_own(
    start: Start, stories: dict[str, Path], tmp_path: Path
) -> None:
    """Twice as wide, published for the same model and taken back: the first one's answers are bit for bit the same.

    Fault injection: turns red when `VerifiedWeights.build` keeps weights that it has bound before.
    """
    wide, _ = make_tiny_artifact(tmp_path / "wide", TinyShape(hidden_size=512), seed=7)
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    await system.publish("m", stories["stories-v1"])
    async with system.client() as client:
        before = await ask(client)
        await system.publish("m", wide)
        between = await ask(client)
        assert (True, True) == (before[0] != between[0], before[1] != between[1])
        await system.publish("m", stories["stories-v1"])
        assert before == await ask(client)
