"""An artifact store over HTTP that does to its answers what a test wishes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

PIECE_BYTES = 64 << 10


class Asked(NamedTuple):
    """One request: for a file's bytes from `begin` up to `end`; None for all."""

    name: str
    begin: int | None
    end: int | None
    authorization: str


class StoreServer:
    """Serves a directory of artifacts.

    Attributes:
        ranges: Whether it takes them.
        version: The ETag of a file.
        statuses: By file name, answers of no use, each given once.
        redirects: By file name.
        cuts: By file name: the connection ends after so many bytes of an answer, each once.
        spoil: Changes a file's content before it is sent.
        gates: By file name: no piece is sent before the event is set; `reached` says that one would be.
        alarms: By file name: an event that is set when so many bytes of it have been sent in all.
        bytes_per_s: How fast it is.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.asked: list[Asked] = []
        self.sent_bytes: collections.Counter[str] = collections.Counter()
        self.ranges = True
        self.version: Callable[[str], str] = lambda name: f'"{name}-1"'
        self.statuses: dict[str, list[int]] = {}
        self.redirects: dict[str, str] = {}
        self.cuts: dict[str, list[int]] = {}
        self.spoil: Callable[[str, bytearray], None] = lambda _name, _content: None
        self.gates: dict[str, asyncio.Event] = {}
        self.bytes_per_s = math.inf
        self.alarms: dict[str, tuple[int, asyncio.Event]] = {}
        self.reached: dict[str, asyncio.Event] = collections.defaultdict(asyncio.Event)

    def asked_for(self, name: str) -> list[Asked]:
        return [each for each in self.asked if each.name == name]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name, path = request.match_info["name"], self.root / request.path.lstrip("/")
        span = request.http_range
        self.asked.append(Asked(name, span.start, span.stop, request.headers.get("Authorization", "")))
        if waiting := self.statuses.get(name):
            return web.Response(status=waiting.pop(0))
        if location := self.redirects.get(name):
            return web.Response(status=302, headers={"Location": location})
        if not path.is_file():
            return web.Response(status=404)
        content = bytearray(path.read_bytes())
        self.spoil(name, content)
        return await self._send(request, name, content)

    async def _send(self, request: web.Request, name: str, content: bytearray) -> web.StreamResponse:
        begin, end, headers, status = 0, len(content), {}, 200
        if version := self.version(name):
            headers["ETag"] = version
        span = request.http_range
        if self.ranges and (span.start or 0) >= len(content):
            return web.Response(status=416)
        if self.ranges and span.start is not None and _is_same(request.headers.get("If-Range"), version):
            begin, end, status = span.start, min(span.stop, len(content)), 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = end - begin
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # whoever has enough hangs up
            await self._send_pieces(request, response, name, content[begin:end])
        return response

    async def _send_pieces(
        self, request: web.Request, response: web.StreamResponse, name: str, content: bytearray
    ) -> None:
        cut = self._next_cut(name, len(content))
        for offset in range(0, cut, PIECE_BYTES):
            await self._pass_gate(name)
            piece = content[offset : min(offset + PIECE_BYTES, cut)]
            await asyncio.sleep(len(piece) / self.bytes_per_s)
            await response.write(piece)
            self.sent_bytes[name] += len(piece)
            self._ring(name)
        if cut == len(content):
            await response.write_eof()
        elif request.transport is not None:
            request.transport.close()

    def _ring(self, name: str) -> None:
        if name in self.alarms and self.sent_bytes[name] >= self.alarms[name][0]:
            self.alarms.pop(name)[1].set()

    def _next_cut(self, name: str, length: int) -> int:
        """How much of this answer is sent: all, unless it is longer than the next cut."""
        cuts = self.cuts.get(name)
        return cuts.pop(0) if cuts and cuts[0] < length else length

    async def _pass_gate(self, name: str) -> None:
        if gate := self.gates.get(name):
            self.reached[name].set()
            await gate.wait()


def _is_same(wanted: str | None, version: str) -> bool:
    """Whether a part is to be sent: weak versions are never the same (RFC 9110, 13.1.5)."""
    return wanted is None or (wanted == version and not version.startswith("W/"))


@contextlib.asynccontextmanager
async def store_server(root: Path, tls: ssl.SSLContext | None = None) -> AsyncIterator[StoreServer]:
    """Runs it in this event loop; over HTTPS if it has a context for that."""
    server = StoreServer(root)
    application = web.Application()
    for below in ("", "/artifacts"):  # of a registry of models
        application.router.add_get(f"{below}/{{artifact}}/{{name}}", server.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}/"
        yield server
    finally:
        for gate in server.gates.values():
            gate.set()
        await runner.cleanup()
