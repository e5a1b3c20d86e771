"""Whether engines on this host serve while weights are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import structlog

from services.common.registry.records import EngineRecord, GenerationState
from services.common.registry.view import View

log = structlog.get_logger()

_SERVING = frozenset({GenerationState.ACTIVE, GenerationState.DRAINING})


def serves(engine: EngineRecord, boot_id: str) -> bool:
    """Whether the engine answers requests on the host that booted as `boot_id`, be it in another container."""
    return engine.boot_id == boot_id and any(each.state in _SERVING for each in engine.generations)


class Traffic:
    """What the registry tells of this host's engines; the last word stands through its outages.

    Args:
        boot_id: Of this host.

    Attributes:
        is_live: Whether one of them serves; read from any thread.
    """

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self.is_live = False

    async def follow(self, engines: View[EngineRecord]) -> None:
        """Listens for ever."""
        async with contextlib.aclosing(engines.changes()) as changes:
            async for _ in changes:
                self.hear(engines.records.values())

    def hear(self, engines: Iterable[EngineRecord]) -> None:
        """How things stand now."""
        is_live = any(serves(engine, self._boot_id) for engine in engines)
        if is_live != self.is_live:
            log.info("live_traffic", engines_serve=is_live)
        self.is_live = is_live
