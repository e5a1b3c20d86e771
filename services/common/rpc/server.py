"""A grpc.aio server as every process of the system runs it: our options, statuses, health and reflection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Final

import grpc
from grpc_health.v1 import _async as health_aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.errors import Unavailable
from services.common.rpc.address import Address
from services.common.rpc.in_flight import InFlight
from services.common.rpc.options import SERVER_OPTIONS
from services.common.rpc.status import StatusInterceptor

_LAST_PUSH_S: Final = 0.2  # for watchers to hear that this server no longer serves
_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class RpcServer:
    """One process's server; add servicers to `grpc_server`, then start.

    Args:
        service_names: Full names of the services it will carry, for health and reflection.
    """

    def __init__(self, service_names: Iterable[str]) -> None:
        self._names = tuple(service_names)
        self._in_flight = InFlight()
        self.grpc_server = grpc.aio.server(
            interceptors=[StatusInterceptor(self._in_flight)], options=SERVER_OPTIONS
        )
        self._health: Any = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        reflection.enable_server_reflection(
            (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc_server
        )

    async def start(self, listen: Address) -> Address:
        """Binds and serves, not ready yet; returns the address with the port that was chosen.

        Raises:
            Unavailable: The port is taken.
        """
        await self.set_ready(False)
        try:
            port = self.grpc_server.add_insecure_port(str(listen))
        except RuntimeError as failure:
            raise Unavailable(f"cannot listen on {listen}: give another port, or 0 for any") from failure
        await self.grpc_server.start()
        return Address(listen.host, port)

    async def set_ready(self, ready: bool) -> None:
        """Tells health clients, watchers at once, whether this process can do its work."""
        status = _SERVING if ready else _NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, drain_s: float) -> None:
        """Refuses new calls, waits up to `drain_s` seconds for the running ones, ends the watches."""
        await self._health.enter_graceful_shutdown()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._in_flight.wait_idle(), drain_s)
        await self.grpc_server.stop(_LAST_PUSH_S)
