"""The questions of an orchestrator and of a Prometheus, answered over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from services.common.errors import Unavailable
from services.common.health_check import NO_CHECKS, Checks
from services.common.metrics import snapshot
from services.common.readiness import Readiness
from services.common.rpc.address import Address

_LAST_ANSWER_S: Final = 1.0  # for a scrape under way when the process ends

log = structlog.get_logger()


class Probes:
    """Serves while its scope lasts: from before a process is ready until it has drained.

    ``/startupz``: 200 once the process answers calls. ``/readyz``: 200 while it can do its work. ``/livez``: 200
    for as long as the event loop turns; it looks at nothing else, so no dependency gets a process killed.
    ``/healthz?check=NAME``: what one of `checks` finds, out of memory; without a name, which there are.
    ``/metrics``: for Prometheus, as text or as OpenMetrics. Where it is not 200 it is 503, and the body says
    what is missing.

    Args:
        listen: Where to listen; port 0 takes a free one.
        readiness: What the first two tell.
        metrics: What the last one tells; read on the event loop.
        checks: Those of ``/healthz``.

    Attributes:
        bound: Where it listens, with the port that was chosen.
    """

    def __init__(
        self, listen: Address, readiness: Readiness, metrics: CollectorRegistry, checks: Checks = NO_CHECKS
    ) -> None:
        self.bound = listen
        self._checks = checks
        self._readiness = readiness
        self._metrics = metrics
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Binds.

        Raises:
            Unavailable: The port is taken.
        """
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=_LAST_ANSWER_S)
        async with contextlib.AsyncExitStack() as scope:
            await runner.setup()
            scope.push_async_callback(runner.cleanup)
            await _listen(runner, self.bound)
            self._scope = scope.pop_all()
        self.bound = Address(self.bound.host, runner.addresses[0][1])
        log.info("listening", protocol="http", address=str(self.bound))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.aclose()

    def _application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/startupz", self._startupz),
                web.get("/readyz", self._readyz),
                web.get("/livez", self._livez),
                web.get("/healthz", self._healthz),
                web.get("/metrics", self._scrape),
            ]
        )
        return application

    async def _startupz(self, _: web.Request) -> web.Response:
        return _answer(self._readiness.started, {"started": self._readiness.started})

    async def _readyz(self, _: web.Request) -> web.Response:
        readiness = self._readiness
        told = {"ready": readiness.ready, "missing": readiness.missing, "names": dict(readiness.names)}
        return _answer(readiness.ready, told)

    async def _livez(self, _: web.Request) -> web.Response:
        return _answer(True, {"live": True})

    async def _healthz(self, request: web.Request) -> web.Response:
        name, there_are = request.query.get("check"), sorted(self._checks)
        if name is None:
            return _answer(True, {"status": "ok", "checks": there_are})
        if name not in self._checks:
            told = {"error": f"there is no check {name!r} in this process", "checks": there_are}
            return _json(400, told)
        return _answer(*self._checks[name]())

    async def _scrape(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        body = await asyncio.to_thread(encode, snapshot(self._metrics))
        return web.Response(body=body, headers={"Content-Type": content_type})


async def _listen(runner: web.AppRunner, address: Address) -> None:
    try:
        await web.TCPSite(runner, address.host.strip("[]"), address.port).start()
    except OSError as failure:
        raise Unavailable(
            f"cannot listen on {address} for HTTP: give --http-listen another port, or 0 for any"
        ) from failure


def _answer(good: bool, told: Mapping[str, Any]) -> web.Response:
    return _json(200 if good else 503, told)


def _json(status: int, told: Mapping[str, Any]) -> web.Response:
    return web.Response(status=status, text=json.dumps(told) + "\n", content_type="application/json")
