"""grpc.health.v1, told by a process's readiness."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from services.common.errors import NotFound
from services.common.readiness import Readiness

_STATUSES: Final = {
    True: pb.HealthCheckResponse.SERVING,
    False: pb.HealthCheckResponse.NOT_SERVING,
    None: pb.HealthCheckResponse.SERVICE_UNKNOWN,
}


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Answers for the process, for each of its services, and for each model@cohort that it knows.

    grpc's own servicer is not used: it cannot forget a name, and a watcher that does not read holds it up.

    Args:
        readiness: What is so.
        services: Full names of the services, which are ready when the process is.
    """

    def __init__(self, readiness: Readiness, services: Iterable[str]) -> None:
        self._readiness = readiness
        self._services = ("", *services)

    async def Check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        statuses = self._statuses()
        if request.service not in statuses:
            raise NotFound("there is no service or model@cohort of that name here")
        return pb.HealthCheckResponse(status=_STATUSES[statuses[request.service]])

    async def List(self, request: pb.HealthListRequest, context: Any) -> pb.HealthListResponse:
        return pb.HealthListResponse(
            statuses={
                name: pb.HealthCheckResponse(status=_STATUSES[is_ready])
                for name, is_ready in self._statuses().items()
            }
        )

    async def Watch(
        self, request: pb.HealthCheckRequest, context: Any
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        """The status and every change of it, for as long as the caller stays; a name may come and go."""
        told = object()
        async with contextlib.aclosing(self._readiness.changes()) as changes:
            async for _ in changes:
                is_ready = self._statuses().get(request.service)
                if is_ready is not told:
                    yield pb.HealthCheckResponse(status=_STATUSES[is_ready])
                told = is_ready

    def _statuses(self) -> dict[str, bool]:
        return {**self._readiness.names, **dict.fromkeys(self._services, self._readiness.ready)}
