"""What a Prometheus reads from a running system, and whether it adds up."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.kernel_layout import PACKED32
from services.common.checkpoint.packed_file import expected_header
from services.common.client import Client
from services.common.completion import Chunk, FinishReason
from services.common.errors import InvalidRequest, NotFound
from services.common.ids import fresh_id
from tests.scenarios.cluster import Cluster
from tests.scrape import Scrape, get, scrape

PROMPT = [5] * 8
LONG: Final[dict[str, Any]] = {"max_tokens": 12_000, "temperature": 0, "ignore_eos": True}
STREAMS = 12
START_S = 60.0
SETTLED_S = 20.0
COMPOSE = Path(__file__).parents[2] / "compose"
Start = Callable[..., Any]


class Scrapes(NamedTuple):
    """One scrape of every process."""

    gateway: Scrape
    scheduler: Scrape
    engine: Scrape
    loader: Scrape

    @property
    def in_use(self) -> tuple[float, ...]:
        """What is 0 when nothing runs."""
        return (
            self.engine.value("halogen_num_requests_running"),
            self.engine.value("halogen_num_requests_waiting"),
            self.engine.value("halogen_kv_cache_usage_perc"),
            self.gateway.value("halogen_requests_in_flight"),
            self.scheduler.value("halogen_queued_requests"),
            self.scheduler.value("halogen_promised_bytes"),
            self.scheduler.value("halogen_open_tickets"),
        )


async def http_addresses(system: Cluster) -> dict[str, str]:
    """Role to where its probes and metrics are, once the status tells it of all."""
    addresses: dict[str, str] = {}
    async with asyncio.timeout(START_S), system.control() as control, aclosing(control.watch()) as statuses:
        while set(Scrapes._fields) != addresses.keys():
            status = await anext(statuses)
            addresses = {process.role: process.http_address for process in status.processes}
    return addresses


async def scrape_all(system: Cluster) -> Scrapes:
    addresses = await http_addresses(system)
    return Scrapes(*[await scrape(addresses[role]) for role in Scrapes._fields])


async def scrapes_until(system: Cluster, holds: Callable[[Scrapes], bool]) -> Scrapes:
    """The first scrapes for which that holds; what ends is told within a few turns of the loops."""
    async with asyncio.timeout(SETTLED_S):
        while not holds(scrapes := await scrape_all(system)):
            pass
    return scrapes


@asynccontextmanager
async def begun(client: Client, request_id: str) -> AsyncIterator[AsyncIterator[Chunk]]:
    """One long stream whose first token has come; leaving the scope early is leaving the gateway."""
    async with client.generate(PROMPT, request_id=request_id, **LONG) as stream:
        chunks = aiter(stream)
        await anext(chunks)
        yield chunks


async def abort_one(client: Client, request_id: str) -> None:
    """Aborts, and reads to the end: who leaves as well may be counted as having left."""
    async with begun(client, request_id) as chunks:
        assert await client.abort(request_id)
        assert FinishReason.ABORTED == [chunk async for chunk in chunks][-1].finish_reason


async def leave_one(client: Client, request_id: str) -> None:
    async with begun(client, request_id):
        pass


def ids(count: int) -> list[str]:
    return [fresh_id("test") for _ in range(count)]


async def test_s_h1_gauges_are_zero_after_everything_was_aborted(
    start: Start, driver: str, long_context: Path
) -> None:
    """While streams run the gauges are not zero; once all are aborted, they are.

    Fault injection: in services/engine/metrics.py read `engine.load` once, in `export`.
    """
    system: Cluster = await start(driver)
    await system.publish("long", long_context)
    async with system.client() as client:
        async with AsyncExitStack() as scope:
            running = ids(STREAMS)
            await asyncio.gather(*(scope.enter_async_context(begun(client, each)) for each in running))
            busy = await scrape_all(system)
            assert 0 < busy.engine.value("halogen_num_requests_running") <= STREAMS
            assert 0 < busy.engine.value("halogen_kv_cache_usage_perc") <= 1
            assert 0 < busy.gateway.value("halogen_requests_in_flight") <= STREAMS
            await asyncio.gather(*(client.abort(each) for each in running))
        idle = await scrapes_until(system, lambda scrapes: not any(scrapes.in_use))
    assert (0.0,) * 7 == idle.in_use


async def test_s_h2_every_accepted_request_ends_in_one_terminal_count(
    start: Start, driver: str, long_context: Path
) -> None:
    """50 aborts, 10 clients that leave, refusals, and answers: reasons sum to the accepted, tokens to the tokens.

    Fault injection: `Completions._accounted` counts in `else` and in `except HalogenError` only.
    """
    system: Cluster = await start(driver)
    await system.publish("long", long_context)
    first = await scrape_all(system)
    async with Client(system.gateway, max_tries=1) as client:
        answers = [await client.generate(PROMPT, max_tokens=n, ignore_eos=True).complete() for n in (1, 5, 9)]
        answered = await scrape_all(system)
        await asyncio.gather(*(abort_one(client, each) for each in ids(50)))
        await asyncio.gather(*(leave_one(client, each) for each in ids(10)))
        for refused in (client.generate(PROMPT, model="nobody"), client.generate(PROMPT, max_tokens=50_000)):
            with pytest.raises((NotFound, InvalidRequest)):
                await refused.complete()
        last = await scrapes_until(system, lambda scrapes: not any(scrapes.in_use))
    check_sums(last)
    check_tokens(first, answered, sum(answer.usage.completion_tokens for answer in answers), len(answers))
    ends = last.gateway.by("halogen_requests_total", "finish_reason")
    assert {"length": 3, "aborted": 50, "cancelled": 10, "rejected": 2} == ends
    assert 65 == last.gateway.value("halogen_requests_accepted_total")


def check_sums(scrapes: Scrapes) -> None:
    """Each process by itself: what was taken in is what has ended; and every end was observed everywhere."""
    gateway, engine = scrapes.gateway, scrapes.engine
    accepted = gateway.value("halogen_requests_accepted_total")
    assert accepted == gateway.value("halogen_requests_total")
    for name in ("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert accepted == gateway.value(f"halogen_{name}_count")
    assert engine.value("halogen_engine_requests_accepted_total") == engine.value(
        "halogen_engine_requests_total"
    )
    given, computed = "halogen_request_generation_tokens_sum", "halogen_generation_tokens_total"
    assert gateway.value(given) <= engine.value(computed)


def check_tokens(before: Scrapes, after: Scrapes, generated: int, requests: int) -> None:
    """Where nobody left, engine, gateway and client agree on every token."""

    def more(role: str, name: str) -> float:
        return float(getattr(after, role).value(name) - getattr(before, role).value(name))

    prompts = len(PROMPT) * requests
    assert prompts == more("engine", "halogen_prompt_tokens_total")
    assert prompts == more("gateway", "halogen_request_prompt_tokens_sum")
    assert generated == more("engine", "halogen_generation_tokens_total")
    assert generated == more("gateway", "halogen_request_generation_tokens_sum")
    assert requests == more("scheduler", "halogen_grants_total")


async def test_probes_and_metrics_tell_of_what_is_served(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """Not ready without a model, ready with one; then artifact and revision stand in the metrics."""
    system: Cluster = await start(driver)
    addresses = await http_addresses(system)
    assert 503 == (await get(addresses["engine"], "/readyz"))[0]
    assert 503 == (await get(addresses["gateway"], "/readyz"))[0]
    published = await system.publish("stories", stories["stories-v1"])
    for role, path in itertools.product(addresses, ("/startupz", "/readyz", "/livez")):
        assert (role, path, 200) == (role, path, (await get(addresses[role], path))[0])
    told = await scrape_all(system)
    labels = {
        "model": "stories",
        "cohort": "stable",
        "artifact": published.artifact_id[:12],
        "revision": "1",
    }
    assert 1 == told.gateway.value("halogen_serving_info", **labels)
    assert 1 == told.engine.value("halogen_generation_info", state="ACTIVE", **labels)
    assert [1, 1, 1, 1] == [
        told.gateway.value("halogen_desired_revision"),
        told.gateway.value("halogen_serving_revision"),
        told.engine.value("halogen_engine_desired_revision"),
        told.engine.value("halogen_engine_actual_revision"),
    ]
    is_packed = bool(told.engine.by("halogen_weights_layout_info", "layout").get("packed32-v1"))
    manifest = read_manifest(stories["stories-v1"])
    packed_bytes = expected_header(manifest, PACKED32).file_bytes
    size_bytes = packed_bytes if is_packed else manifest.weights.size_bytes
    assert size_bytes == told.loader.value("halogen_resident_bytes")
    assert size_bytes == told.engine.value("halogen_memory_allocated_bytes", kind="weights")
    assert packed_bytes * is_packed == told.loader.value("halogen_resident_derived_bytes")
    stages = told.loader.by("halogen_load_stage_seconds_count", "stage")
    assert (1, 0, is_packed) == (stages["place"], stages.get("adopt", 0), stages.get("derive", 0))
    assert (1, 1) == (
        told.scheduler.value("halogen_scheduler_leads"),
        told.scheduler.value("halogen_engines"),
    )


async def test_board_and_alerts_name_what_is_exported(start: Start) -> None:
    """Every metric of the provisioned board and of the rules is one that some process tells of."""
    told = await scrape_all(await start("in_process"))
    exported = set[str]().union(*(each.names for each in told))
    expressions = [*board_expressions(), *alert_expressions()]
    named = {
        name for expression in expressions for name in re.findall(r"\b(?:halogen|process)_\w+", expression)
    }
    assert len(named) > 30
    assert set() == named - exported


def board_expressions() -> Iterator[str]:
    board = json.loads((COMPOSE / "grafana/dashboards/halogen.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in board["templating"]["list"]:
        yield variable["query"]["query"]


def alert_expressions() -> Iterator[str]:
    rules: Mapping[str, Any] = yaml.safe_load((COMPOSE / "prometheus/rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert {"summary", "action"} == set(rule["annotations"])
            yield rule["expr"]
