"""A real Prometheus that watches a composed system: it reaches every process, its figures add up, its board shows data.

Runs inside the system's network; the board, as Grafana reads it, comes on standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from services.common.backoff import Backoff
from services.common.client import Client
from services.common.errors import HalogenError
from services.common.ids import fresh_id
from services.common.rpc.credentials import Credentials
from services.common.rpc.endpoint import Endpoint

WINDOW: Final = "10m"
LONG: Final = 400
IDLE: Final = (
    "sum(halogen_requests_in_flight)",
    "sum(halogen_num_requests_running)",
    "sum(halogen_num_requests_waiting) or vector(0)",
    "sum(halogen_queued_requests)",
    "sum(halogen_open_tickets) or vector(0)",
    "max(halogen_kv_cache_usage_perc)",
)
UNACCOUNTED: Final = "sum(halogen_requests_accepted_total) - sum(halogen_requests_total)"


class Prometheus:
    """Its HTTP API."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def query(self, expression: str) -> list[float]:
        """The values of all series now."""
        data = await self._get("query", query=expression)
        return [float(series["value"][1]) for series in data["result"]]

    async def states(self) -> dict[str, str]:
        """Every target's address with its error, or "up"."""
        targets = (await self._get("targets", state="active"))["activeTargets"]
        return {each["scrapeUrl"]: each["lastError"] or each["health"] for each in targets}

    async def _get(self, what: str, **parameters: str) -> Any:
        async with self._session.get(f"/api/v1/{what}", params=parameters) as response:
            answer = await response.json()
        if answer["status"] != "success":
            raise ValueError(f"{parameters}: {answer['error']}")
        return answer["data"]


async def leave(client: Client, number: int) -> None:
    """One request that its client aborts, or just leaves, after some chunks."""
    request_id, left = fresh_id("left"), number % 5
    async with client.generate(
        "Once upon a time", max_tokens=LONG, ignore_eos=True, request_id=request_id
    ) as stream:
        async for _ in stream:
            if left == 0 and number % 2:
                return
            if left == 0:
                await client.abort(request_id)
            left -= 1


async def refused(client: Client, **options: Any) -> None:
    """One request that can never work, for the figures of what is turned away."""
    try:
        await client.generate("Once upon a time", **options).complete()
    except HalogenError:
        return
    raise AssertionError(f"{options} was answered")


async def settle(fault: Callable[[], Awaitable[Any]], timeout_s: float) -> None:
    """Returns once there is no fault; Prometheus tells nobody, so it is asked again and again.

    Raises:
        AssertionError: There still is one after so many seconds.
    """
    backoff, last = Backoff(first_s=0.5), None
    try:
        async with asyncio.timeout(timeout_s):
            while last := await fault():
                await backoff.pause()
    except TimeoutError:
        raise AssertionError(f"after {timeout_s:.0f} s still: {last}") from None


async def unreached(prometheus: Prometheus, targets: int) -> dict[str, str] | None:
    """All targets, unless there are so many and every one is up."""
    states = await prometheus.states()
    return None if list(states.values()) == ["up"] * targets else states


async def not_idle(prometheus: Prometheus) -> dict[str, list[float]]:
    """What should be 0 and is not."""
    seen = {each: await prometheus.query(each) for each in (*IDLE, UNACCOUNTED)}
    return {expression: values for expression, values in seen.items() if values != [0.0]}


async def blank_panels(prometheus: Prometheus, board: dict[str, Any]) -> list[str]:
    """Expressions of the board that show nothing."""
    blank = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", WINDOW).replace("$model", ".*")
            if all(math.isnan(value) for value in await prometheus.query(expression)):
                blank.append(f"{panel['title']}: {expression}")
    return blank


async def watch(options: argparse.Namespace, board: dict[str, Any]) -> None:
    gateway = Endpoint(options.gateway, Credentials.of(token_file=Path(os.environ["HALOGEN_TOKEN_FILE"])))
    async with aiohttp.ClientSession(options.prometheus) as session, Client(gateway) as client:
        prometheus = Prometheus(session)
        await settle(lambda: unreached(prometheus, options.targets), options.timeout_s)
        await refused(client, model="no-such-model")
        await refused(client, max_tokens=8000)
        async with asyncio.TaskGroup() as tasks:
            for number in range(options.aborts):
                tasks.create_task(leave(client, number))
        await settle(lambda: not_idle(prometheus), options.timeout_s)
        await settle(lambda: blank_panels(prometheus, board), options.timeout_s)
        panels = sum(len(panel.get("targets", ())) for panel in board["panels"])
        print(
            f"{options.targets} targets up, {options.aborts} aborts accounted for, {panels} queries with data"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", default="http://prometheus:9090")
    parser.add_argument("--gateway", default="gateway:50051")
    parser.add_argument("--targets", type=int, required=True, help="processes that it must reach")
    parser.add_argument("--aborts", type=int, default=50)
    parser.add_argument("--timeout-s", type=float, default=60.0)
    asyncio.run(watch(parser.parse_args(), json.load(sys.stdin)))


if __name__ == "__main__":
    main()
