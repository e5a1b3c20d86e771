"""What a gateway tells of itself: which texts it has loaded, and whether anything can be asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from services.common.readiness import Readiness
from services.common.registry.records import EngineRecord, GatewayRecord, GenerationState, TextFailure
from services.common.registry.registration import Registration
from services.common.registry.view import View
from services.gateway.catalog import Catalog


class Report:
    """Keeps the registry and health clients told.

    A ``model@cohort`` is ready when its text is loaded and an engine, alive by its lease, has it ACTIVE. Requests
    are routed all the same while it is not: an engine that the registry has lost sight of may well answer.

    Args:
        catalog: Texts and routes.
        engines: Mirror of engines/.
        registration: Of this gateway.
        readiness: Of this gateway.
    """

    def __init__(
        self,
        catalog: Catalog,
        engines: View[EngineRecord],
        registration: Registration[GatewayRecord],
        readiness: Readiness,
    ) -> None:
        self._catalog = catalog
        self._engines = engines
        self._registration = registration
        self._readiness = readiness

    async def follow(self) -> None:
        """Tells after every change, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._after(self._catalog.changes()))
            group.create_task(self._after(self._engines.changes()))

    async def _after(self, changes: AsyncGenerator[None, None]) -> None:
        async with contextlib.aclosing(changes):
            async for _ in changes:
                self._tell()

    def _tell(self) -> None:
        told = self._catalog.failures
        failures = tuple(TextFailure(**failed.route._asdict(), error=failed.error) for failed in told)
        text = {"artifact_ids": self._catalog.artifact_ids, "text_failures": failures}
        self._registration.update(self._registration.record.model_copy(update=text))
        active = {
            generation.artifact_id
            for engine in self._engines.records.values()
            for generation in engine.generations
            if generation.state is GenerationState.ACTIVE
        }
        names = self._catalog.readiness(active)
        self._readiness.set("" if any(names.values()) else "no model is served", names)
