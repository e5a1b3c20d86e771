"""What a user and an operator see of a running system, in this process and as real processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from services.cli import status as status_command
from services.cli.console import CommandError
from services.common.client import Client
from services.common.completion import FinishReason
from services.common.errors import InvalidRequest, NotFound
from tests.scenarios.cluster import Cluster

STORY = "Once upon a time"
Start = Callable[..., Any]


async def test_a_published_model_answers(start: Start, driver: str, stories: dict[str, Path]) -> None:
    """The first and the last chunk say what answered; usage and text are those of the chunks together."""
    system: Cluster = await start(driver)
    published = await system.publish("stories", stories["stories-v1"])
    async with system.client() as client, client.generate(STORY, max_tokens=24, temperature=0) as stream:
        chunks = [chunk async for chunk in stream]
    first, last = chunks[0].provenance, chunks[-1].provenance
    assert first is not None
    assert first == last
    assert (published.artifact_id, 1, "stories", 0.0, 24) == (
        first.artifact_id,
        first.revision,
        first.model,
        first.sampling.temperature,
        first.sampling.max_tokens,
    )
    assert [None] * (len(chunks) - 1) == [chunk.finish_reason for chunk in chunks[:-1]]
    assert chunks[-1].usage is not None
    assert sum(len(chunk.token_ids) for chunk in chunks) == chunks[-1].usage.completion_tokens
    assert "little" in "".join(chunk.text for chunk in chunks)


async def test_revisions_rise_and_cohorts_differ(start: Start, driver: str, stories: dict[str, Path]) -> None:
    """A canary beside a stable of the same model, each with its own weights and tokenizer."""
    system: Cluster = await start(driver)
    await system.publish("stories", stories["stories-v1"])
    canary = await system.publish("stories", stories["stories-v2"], cohort="canary")
    assert 2 == canary.revision
    async with system.client() as client:
        answers = [
            await client.generate(STORY, cohort=cohort, max_tokens=24, temperature=0).complete()
            for cohort in ("stable", "canary", "stable")
        ]
    assert answers[0].token_ids == answers[2].token_ids
    assert answers[0].text != answers[1].text
    assert [1, 2, 1] == [answer.provenance.revision for answer in answers if answer.provenance]


async def test_what_is_served_already_can_be_published_again(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """The same artifact once more, for the other cohort, and after another: each publish is served at once."""
    system: Cluster = await start(driver)
    first, second = stories["stories-v1"], stories["stories-v2"]
    steps = [(first, "stable"), (first, "stable"), (first, "canary"), (second, "stable"), (first, "stable")]
    revisions = [(await system.publish("m", artifact, cohort=cohort)).revision for artifact, cohort in steps]
    assert [1, 2, 3, 4, 5] == revisions
    async with system.client() as client:
        answer = await client.generate(STORY, max_tokens=4).complete()
    assert answer.provenance is not None
    assert 5 == answer.provenance.revision


async def test_a_swap_loses_nobody_who_waits(start: Start, driver: str, stories: dict[str, Path]) -> None:
    """Three times as many requests as the arena holds, and the weights replaced under them, six times over."""
    system: Cluster = await start(driver, engine={"kv_arena_bytes": 24 * 32 * 1024})
    await system.publish("m", stories["stories-v1"])
    ending, answered = asyncio.Event(), asyncio.Queue[str]()

    async def ask(client: Client) -> None:
        while not ending.is_set():
            answer = await client.generate(STORY, max_tokens=40, temperature=0, ignore_eos=True).complete()
            assert answer.provenance is not None
            answered.put_nowait(answer.provenance.artifact_id)

    async with Client(system.gateway, max_tries=1) as client, asyncio.TaskGroup() as group:
        for _ in range(24):
            group.create_task(ask(client))
        for name in ("stories-v2", "stories-v1") * 3:
            published = await system.publish("m", stories[name])
            while await answered.get() != published.artifact_id:
                pass
        ending.set()


async def test_what_can_never_work_is_refused_with_words(start: Start, stories: dict[str, Path]) -> None:
    """Bad input never reaches the engine, and the next request is served."""
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        with pytest.raises(NotFound, match="stories"):
            await client.generate(STORY, model="nobody").complete()
        with pytest.raises(InvalidRequest, match="192"):
            await client.generate(STORY, max_tokens=1000).complete()
        with pytest.raises(InvalidRequest, match="template"):
            await client.chat([{"role": "user", "content": "hello"}]).complete()
        assert 1 == len((await client.generate(STORY, max_tokens=1).complete()).token_ids)


async def test_a_client_without_stubs_lists_and_calls(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """Reflection is enough to find every service and to generate; all four processes offer it."""
    system: Cluster = await start(driver)
    await system.publish("stories", stories["stories-v1"])

    def talk() -> tuple[list[str], list[dict[str, Any]]]:
        services: list[str] = []
        for address in (system.scheduler, system.engine, system.loader):
            with grpc.insecure_channel(address) as channel:
                services += ProtoReflectionDescriptorDatabase(channel).get_services()
        with grpc.insecure_channel(system.gateway) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            services += database.get_services()
            method = DescriptorPool(database).FindServiceByName("halogen.v1.InferenceService").methods[0]
            request = message_factory.GetMessageClass(method.input_type)()
            json_format.ParseDict({"text": STORY, "sampling": {"max_tokens": 4}}, request)
            call: Any = channel.unary_stream(
                f"/{method.containing_service.full_name}/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
            )
            return services, [json_format.MessageToDict(response) for response in call(request)]

    services, responses = await asyncio.to_thread(talk)
    ours = {"InferenceService", "ControlService", "SchedulerService", "EngineService", "LoaderService"}
    assert {f"halogen.v1.{name}" for name in ours} <= set(services)
    assert 4 == services.count("grpc.health.v1.Health")
    assert "FINISH_REASON_LENGTH" == responses[-1]["chunk"]["finishReason"]


async def test_status_shows_what_is_served_where(
    start: Start, driver: str, stories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON for scripts: cohorts with both revisions, every process with what it holds."""
    system: Cluster = await start(driver)
    published = await system.publish("stories", stories["stories-v1"])
    async with system.control() as control:
        status = await control.status(timeout_s=10)
    capsys.readouterr()
    status_command.show(status, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    [cohort] = shown["cohorts"]
    assert ("stories", "stable", published.artifact_id, published.artifact_id) == (
        cohort["model"],
        cohort["cohort"],
        cohort["serving_artifact_id"],
        cohort["desired_artifact_id"],
    )
    assert {"gateway", "scheduler", "loader", "engine"} == {each["role"] for each in shown["processes"]}
    assert [1] == [each["term"] for each in shown["processes"] if each["role"] == "scheduler"]
    [engine] = [each for each in shown["processes"] if each["role"] == "engine"]
    assert (system.engine, "GENERATION_STATE_ACTIVE") == (
        engine["address"],
        engine["generations"][0]["state"],
    )
    [artifact] = shown["artifacts"]
    assert "ARTIFACT_STATE_READY" == artifact["state"]


async def test_s_b1_a_prompt_over_the_arena_fails_fast_and_blocks_nobody(
    start: Start, driver: str, long_context: Path
) -> None:
    """A prompt below the context but over the pool is refused at once; the queue keeps moving.

    Turns red when: refusal() in services/scheduler/refusal.py returns None for a request over every arena.
    """
    block_bytes = 2 * 2 * 2 * 16 * 16 * 2  # layers, K and V, kv heads, tokens, head size, bf16
    system: Cluster = await start(driver, engine={"kv_arena_bytes": 49 * block_bytes})
    await system.publish("long", long_context)
    async with system.client() as client:
        with pytest.raises(InvalidRequest) as raised:
            await client.generate([7] * 1002, max_tokens=8, timeout_s=30).complete()
        assert "PROMPT_TOO_LARGE" == raised.value.reason
        answer = await client.generate([7] * 10, max_tokens=8, ignore_eos=True, timeout_s=30).complete()
    assert (8, FinishReason.LENGTH) == (len(answer.token_ids), answer.finish_reason)


@pytest.mark.parametrize("block", [0, 1, 2])
async def test_a_flipped_byte_is_rejected_and_the_old_model_serves_on(
    start: Start, stories: dict[str, Path], three_blocks: Path, block: int
) -> None:
    """Not one block may be wrong; the message names it, and nothing that is served changes."""
    await _flip_and_publish(await start("in_process"), stories["stories-v1"], three_blocks, block)


async def test_a_flipped_byte_is_rejected_by_real_processes(
    start: Start, stories: dict[str, Path], three_blocks: Path
) -> None:
    """The same over every wire."""
    await _flip_and_publish(await start("processes"), stories["stories-v1"], three_blocks, 1)


async def _flip_and_publish(system: Cluster, good: Path, artifact: Path, block: int) -> None:
    await system.publish("m", good)
    async with system.client() as client:
        before = await client.generate(STORY, max_tokens=12, temperature=0).complete()
        weights = artifact / "model.halogen"
        position = weights.stat().st_size - (3 - block) * (4 << 20) + 4097
        _flip(weights, position)
        try:
            with pytest.raises(CommandError, match=rf"REJECTED.*block {block}\b"):
                await system.publish("m", artifact)
        finally:
            _flip(weights, position)
        after = await client.generate(STORY, max_tokens=12, temperature=0).complete()
        status = await _status(system)
    assert before.token_ids == after.token_ids
    assert [(1, 1)] == [(cohort.desired_revision, cohort.serving_revision) for cohort in status.cohorts]


async def test_a_rejected_artifact_can_be_mended(start: Start, three_blocks: Path) -> None:
    """What the refusal of a plain publish says to do, done, serves. Fault injection: `replace` acts as `put`."""
    system = await start("in_process")
    weights = three_blocks / "model.halogen"
    _flip(weights, -1)
    try:
        with pytest.raises(CommandError, match=r"REJECTED"):
            await system.publish("m", three_blocks)
    finally:
        _flip(weights, -1)
    with pytest.raises(CommandError, match=rf"halogen publish m {three_blocks} --reverify"):
        await system.publish("m", three_blocks)
    assert 1 == (await system.publish("m", three_blocks, reverify=True)).revision


async def _status(system: Cluster) -> Any:
    async with system.control() as control:
        return await control.status(timeout_s=10)


def _flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        position = file.seek(position, os.SEEK_SET if position >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
