"""A server of completions over HTTP, in processes of its own, and a client of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from bench.ask import Ask
from bench.contender import Heard
from bench.program import PATIENCE_S, ProgramFailedError

MODEL: Final = "bench"
START_S: Final = 600.0
_LOOK_S: Final = 0.1
_DATA: Final = b"data: "


class HttpServer(NamedTuple):
    """A running server.

    Attributes:
        ready_s: Seconds from its start until it said that it was healthy.
    """

    pid: int
    ready_s: float
    client: HttpClient


class HttpClient:
    """Asks for completions, as OpenAI's interface has it, and streams them.

    Args:
        session: Open.
        address: host:port.
        more: What this server wants to be told in every request.
    """

    def __init__(self, session: aiohttp.ClientSession, address: str, more: Mapping[str, Any]) -> None:
        self._session = session
        self._url = f"http://{address}"
        self._more = more

    async def is_healthy(self) -> bool:
        try:
            async with self._session.get(f"{self._url}/health") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def ask(self, ask: Ask) -> Heard:
        """One request, greedy and of full length, to its end."""
        body = {"model": MODEL, "prompt": list(ask.prompt), "max_tokens": ask.tokens, "temperature": 0}
        told = {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        first_s, last_s, tokens = 0.0, 0.0, 0
        async with self._session.post(
            f"{self._url}/v1/completions", json={**body, **told, **self._more}
        ) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if not line.startswith(_DATA + b"{"):
                    continue
                event = json.loads(line[len(_DATA) :])
                if event["choices"]:
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
                if usage := event.get("usage"):
                    tokens = usage["completion_tokens"]
        return Heard(first_s, last_s, tokens)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def http_server(
    command: Sequence[str | Path],
    port: int,
    log: Path,
    *,
    environment: Mapping[str, str],
    more: Mapping[str, Any],
) -> AsyncIterator[HttpServer]:
    """Runs a server for the scope, which begins when it is healthy; its whole process group ends with it."""
    began_s = time.perf_counter()
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=output, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
    endless = aiohttp.ClientTimeout(total=None)
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=endless, raise_for_status=False
        ) as session:
            client = HttpClient(session, f"127.0.0.1:{port}", more)
            await _healthy(client, process, log)
            yield HttpServer(process.pid, time.perf_counter() - began_s, client)
    finally:
        await asyncio.shield(_end(process))


async def _healthy(client: HttpClient, process: Process, log: Path) -> None:
    """Looks until it says so: such a server tells nobody by itself."""
    async with asyncio.timeout(START_S):
        while not await client.is_healthy():
            if process.returncode is not None:
                raise ProgramFailedError(f"{log.stem} ended with status {process.returncode}: {_last(log)}")
            await asyncio.sleep(_LOOK_S)


def _last(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-5:]


async def _end(process: Process) -> None:
    """Asks all of its group to end, and makes them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), PATIENCE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
