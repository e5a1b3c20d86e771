"""A registry of models that does with pushes what a test wishes, and one that says nothing at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiohttp import web


class Put(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


class RegistryServer:
    """Takes every push.

    Attributes:
        puts: What came, also what was not taken.
        taken: By path, what it knows; the same document again changes nothing.
        statuses: Answers that are given first, one each.
        location: Where those of them that redirect lead.
        gate: Closed, no push is answered.
        came: Set whenever one comes.
    """

    def __init__(self) -> None:
        self.url = ""
        self.puts: list[Put] = []
        self.taken: dict[str, bytes] = {}
        self.statuses: list[int] = []
        self.location = ""
        self.gate = asyncio.Event()
        self.gate.set()
        self.came = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.puts.append(Put(request.path, dict(request.headers), body))
        self.came.set()
        await self.gate.wait()
        if self.statuses:
            return web.Response(status=self.statuses.pop(0), headers={"Location": self.location})
        self.taken[request.path] = body
        return web.Response(status=201, body=b"x" * (1 << 20))


@contextlib.asynccontextmanager
async def registry_server() -> AsyncIterator[RegistryServer]:
    """Runs it in this event loop, below /base/."""
    server, application = RegistryServer(), web.Application()
    application.router.add_put("/base/{rest:.*}", server.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/base"
        yield server
    finally:
        server.gate.set()
        await runner.cleanup()


class BlackHole:
    """Listens, and never answers.

    Attributes:
        reached: Set once somebody has sent it something.
        connections: So many came.
    """

    def __init__(self) -> None:
        self.url = ""
        self.reached = asyncio.Event()
        self.connections = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                self.reached.set()


@contextlib.asynccontextmanager
async def black_hole() -> AsyncIterator[BlackHole]:
    """Runs it in this event loop."""
    hole = BlackHole()
    async with await asyncio.start_server(hole.take, "127.0.0.1", 0) as server:
        hole.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield hole
        server.close()
