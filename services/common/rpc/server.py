"""A grpc.aio server as every process of the system runs it: our options, statuses, health and reflection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from typing import Final

import grpc
import structlog
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.errors import Unavailable
from services.common.readiness import Readiness
from services.common.rpc.address import Address
from services.common.rpc.door import OPEN, Door
from services.common.rpc.entrance import Entrance
from services.common.rpc.health import HealthServicer
from services.common.rpc.in_flight import SLOW_READER_S, InFlight, stopping
from services.common.rpc.options import SERVER_OPTIONS
from services.common.rpc.status import LAST_WORDS_S, StatusInterceptor

_CLOSING_S: Final = 0.1  # for calls that come in this very moment to be told; watches never end by themselves

log = structlog.get_logger()


class RpcServer:
    """One process's server; add servicers to `grpc_server`, then start.

    Args:
        service_names: Full names of the services it will carry, for health and reflection.
        slow_reader_s: How long the reader of a stream may take nothing.
        door: How callers come in.

    Attributes:
        readiness: What health clients are told; set it.
        in_flight: The calls under way.
        door: How callers come in.
        refusals: Of those that were not let in.
    """

    def __init__(
        self,
        service_names: Iterable[str],
        slow_reader_s: float = SLOW_READER_S,
        door: Door = OPEN,
    ) -> None:
        names = tuple(service_names)
        self.door = door
        self.readiness = Readiness()
        self.in_flight = InFlight(slow_reader_s)
        entrance = Entrance(door.access)
        self.refusals = entrance.refusals
        self.grpc_server = grpc.aio.server(
            interceptors=[StatusInterceptor(self.in_flight, entrance)], options=SERVER_OPTIONS
        )
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(self.readiness, names), self.grpc_server)
        reflection.enable_server_reflection(
            (*names, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc_server
        )

    async def start(self, listen: Address) -> Address:
        """Binds and serves, not ready yet; returns the address with the port that was chosen.

        Raises:
            Unavailable: The port is taken.
        """
        try:
            port = self._bind(str(listen))
        except RuntimeError as failure:
            raise Unavailable(f"cannot listen on {listen}: give another port, or 0 for any") from failure
        await self.grpc_server.start()
        self.readiness.start()
        return Address(listen.host, port)

    def _bind(self, listen: str) -> int:
        tls = self.door.tls
        if tls is None:
            return self.grpc_server.add_insecure_port(listen)
        own, client_ca = tls.own, tls.client_ca
        credentials = grpc.ssl_server_credentials(
            [(own.key, own.certificates)], client_ca, require_client_auth=client_ca is not None
        )
        return self.grpc_server.add_secure_port(listen, credentials)

    async def stop(self, drain_s: float, grace_s: float = 0.0) -> None:
        """Says that it is not ready, takes calls for the grace, refuses them, finishes what runs, and ends.

        Args:
            drain_s: How long running calls may take to finish; what is left then ends in a status.
            grace_s: How long new calls are still taken while others learn of the end.
        """
        self.readiness.end()
        await asyncio.sleep(grace_s)
        self.in_flight.refuse()
        log.info("drain_start", calls=self.in_flight.count)
        await _within(self.in_flight.wait_idle(), drain_s)
        log.info("drain_end", calls=self.in_flight.count)
        self.in_flight.end_all(stopping())
        await _within(self.in_flight.wait_gone(), LAST_WORDS_S)
        await self.grpc_server.stop(_CLOSING_S)


async def _within(done: Awaitable[None], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(done, seconds)
