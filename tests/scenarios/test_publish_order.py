"""Publishes end in the order of their revisions, however many come at once."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from services.cli.delivery import deliver
from services.common.checkpoint.artifact_store import ArtifactStore
from services.loader.block_reader import BlockReader
from services.loader.sink import Sink
from tests.scenarios.asking import asking
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import APPLIED, SUPERSEDED, operator
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]
MODELS, PUBLISHES = 10, 20
LOADING, TURN = 3, 3  # models that have artifacts of their own; how many
RATE: Final = 20  # publishes a second
SHORT_TICKETS = {"engine": {"ticket_ttl_s": 0.2}, "scheduler": {"ticket_ttl_s": 0.2}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tiny artifacts."""
    folder = tmp_path_factory.mktemp("pair")
    return make_tiny_artifact(folder, seed=1)[0], make_tiny_artifact(folder, seed=2)[0]


async def test_r_a4_eight_publishes_at_once_read_each_block_once_and_swap_once(
    start: Start, three_blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is registered, too; all get a revision and all end. One swap is made, and a ninth publish makes no other.

    There is one file more where engines want weights packed; of each every block is read once.

    Fault injection: turns red when Preparations starts a read for everybody that asks, or RolloutWriter tells of a swap
    whenever the revision moves.
    """
    reads = collections.Counter[Path]()
    read_into = BlockReader.read_into

    def counted(reader: BlockReader, sink: Sink, *more: Any, **options: Any) -> None:
        reads[reader.path] += 1
        read_into(reader, sink, *more, **options)

    monkeypatch.setattr(BlockReader, "read_into", counted)
    system: Cluster = await start("in_process")
    delivered = deliver(three_blocks, ArtifactStore.at(str(system.store)), replace=False)
    artifact_id = delivered.manifest.id
    async with system.control() as control:
        me = operator(system, control)

        async def publish() -> int:
            await me.register_by_id(artifact_id)
            return await me.publish(artifact_id)

        with capture_logs() as logs:
            revisions = sorted(await asyncio.gather(*(publish() for _ in range(8))))
            ends = [(await me.end(revision)).state for revision in revisions]
            await me.end(await me.publish(artifact_id))
    assert (list(range(1, 9)), APPLIED) == (revisions, ends[-1])
    assert {APPLIED, SUPERSEDED} >= set(ends)
    swaps = [entry for entry in logs if entry["event"] == "atomic_swap_commit" and "key" in entry]
    assert ({1}, 1) == (set(reads.values()), len(swaps))


async def test_r_a3_what_is_published_is_compared_by_content(start: Start, pair: tuple[Path, Path]) -> None:
    """The same name with another digest is loaded and answers; the same content is not loaded again.

    Fault injection: turns red when `Assignments.wanted` leaves out targets where something is served.
    """
    system: Cluster = await start("in_process", **SHORT_TICKETS)
    async with system.control() as control, system.client() as client:
        me = operator(system, control)
        first, second = await me.register(pair)
        with capture_logs() as logs:
            for revision, artifact_id in enumerate((first, second, second), start=1):
                await me.publish(artifact_id)
                assert APPLIED == (await me.end(revision)).state
                answer = await client.generate([3, 4, 5], max_tokens=1).complete()
                assert answer.provenance is not None
                assert (artifact_id, revision) == (answer.provenance.artifact_id, answer.provenance.revision)
    loads = [entry["artifact_id"] for entry in logs if entry["event"] == "checkpoint_start"]
    assert [first, second] == loads


async def test_r_c3_registering_moves_no_traffic(start: Start, pair: tuple[Path, Path]) -> None:
    """Nobody loads what is only registered, and what is served stays.

    Fault injection: turns red when Artifacts.register names a target.
    """
    system: Cluster = await start("in_process")
    async with system.control() as control:
        me = operator(system, control)
        (first,) = await me.register(pair[:1])
        await me.publish(first)
        assert APPLIED == (await me.end(1)).state
        await me.register(pair[1:])
        cohort = await me.cohort()
        assert (1, 1, first) == (cohort.desired_revision, cohort.serving_revision, cohort.serving_artifact_id)
        held = [each for process in (await control.status(30)).processes for each in process.generations]
        assert [first] == [each.artifact_id for each in held]
        assert [1] == [entry.revision for entry in await me.history()]


async def test_publishes_one_after_another_are_applied_in_order(
    start: Start, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Ten models, twenty publishes each, every one sent after the last was applied: none is lost or overtaken.

    Three of the models have three artifacts of their own each, in turn, and an engine holds two at most: so each publish is
    a load, a warm-up and a swap there. The others take turns at the same two.

    Fault injection: turns red when `next_revision` skips one.
    """
    folder = tmp_path_factory.mktemp("eleven")
    made = [make_tiny_artifact(folder, seed=seed)[0] for seed in range(2 + LOADING * TURN)]
    own = [made[2 + number * TURN :][:TURN] for number in range(LOADING)]
    system: Cluster = await start("in_process", **SHORT_TICKETS)

    async def twenty(number: int) -> list[Any]:
        async with system.control() as control:
            me = operator(system, control, f"model-{number}")
            ids = await me.register(own[number] if number < LOADING else made[:2])
            for turn in range(PUBLISHES):
                outcome = await me.end(await me.publish(ids[turn % len(ids)]))
                assert (turn + 1, APPLIED) == (outcome.revision, outcome.state), outcome
            return await me.history()

    with capture_logs() as logs:
        histories = await asyncio.gather(*(twenty(number) for number in range(MODELS)))
    for history in histories:
        expected = [(n, APPLIED) for n in range(1, PUBLISHES + 1)]
        assert expected == [(entry.revision, entry.outcome.state) for entry in history]
    loads = collections.Counter(entry["model"] for entry in logs if entry["event"] == "checkpoint_start")
    swaps = collections.Counter(
        entry["key"] for entry in logs if entry["event"] == "atomic_swap_commit" and "key" in entry
    )
    assert [PUBLISHES] * LOADING == [loads[f"model-{number}"] for number in range(LOADING)]
    assert {f"targets/model-{number}/stable": PUBLISHES for number in range(MODELS)} == swaps


async def test_two_hundred_publishes_under_load_end_in_order(start: Start, pair: tuple[Path, Path]) -> None:
    """At 20 a second: the last is applied, many are on the way, every other is superseded by the next; no request fails.

    Fault injection: turns red when `plan` leaves out `_superseding`.
    """
    system: Cluster = await start("in_process", **SHORT_TICKETS)
    async with system.control() as control:
        me = operator(system, control)
        ids = await me.register(pair)
        await me.end(await me.publish(ids[1]))
        async with asking(system, "m") as answered:
            clock = asyncio.get_running_loop()
            begun_s = clock.time()
            for number in range(200):
                await asyncio.sleep(begun_s + number / RATE - clock.time())
                await me.publish(ids[number % 2])
            took_s = clock.time() - begun_s
            assert APPLIED == (await me.end(201)).state
        assert 199 / RATE <= took_s < 4 * 200 / RATE  # on a busy machine fewer a second are taken in
        assert 0 < answered.total()
        history = await me.history()
    _check_order(history)
    assert list(range(1, 202)) == [entry.revision for entry in history]
    assert APPLIED == history[-1].outcome.state
    between = collections.Counter(entry.outcome.state for entry in history[1:-1])
    assert 20 <= between[APPLIED], between


def _check_order(history: list[Any]) -> None:
    """Every publish has ended, after the one before it, and what was superseded was so by the next."""
    ends = [entry.end_time.ToNanoseconds() for entry in history]
    assert all(ends)
    assert sorted(ends) == ends
    for entry in history:
        assert entry.outcome.state in {APPLIED, SUPERSEDED}
        if entry.outcome.state == SUPERSEDED:
            assert entry.revision + 1 == entry.outcome.superseded_by
