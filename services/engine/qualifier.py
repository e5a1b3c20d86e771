"""What this engine's build makes of artifacts, put on record once each: the parts of the graph hash that no artifact has."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from services.common.backoff import Backoff
from services.common.checkpoint.graph_hash import Built
from services.common.errors import HalogenError
from services.common.registry import keys
from services.common.registry.qualification_records import ProbeResult, QualificationRecord
from services.common.registry.store import Put, Store, Unchanged
from services.engine.generation import Generation

WARM_UP: Final = ProbeResult(
    name="warm_up", passed=True, detail="representative requests and the shapes of service"
)

log = structlog.get_logger()


class Qualifier:
    """Notes generations that have become ACTIVE, and writes qualifications/ when the registry is there.

    Args:
        runtime_build: What answers, for people.
    """

    def __init__(self, runtime_build: str) -> None:
        self._runtime_build = runtime_build
        self._waiting: dict[
            str, QualificationRecord
        ] = {}  # by key: as many as artifacts are loaded meanwhile
        self._news = asyncio.Event()

    def note(self, generation: Generation) -> None:
        """Takes down what an ACTIVE generation's model was built from."""
        built = generation.model.built if generation.model else None
        if built is not None:
            key = keys.qualification(generation.artifact_id, built.root)
            self._waiting[key] = _record(built, self._runtime_build)
            self._news.set()

    async def follow(self, store: Store) -> None:
        """Writes what was noted, for ever; what is on record already stays, with all that was said of it.

        A registry that is away, full or refuses delays that, and nothing else.
        """
        backoff = Backoff()
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._write_all(store)
                backoff.reset()
            except HalogenError as failure:
                log.warning("qualification_delayed", error=str(failure))
                self._news.set()
                await backoff.pause()

    async def _write_all(self, store: Store) -> None:
        while self._waiting:
            key, record = next(iter(self._waiting.items()))
            if await store.commit([Unchanged(key, 0)], [Put(key, record.encode())]):
                log.info("qualification_recorded", key=key)
            del self._waiting[key]


def _record(built: Built, runtime_build: str) -> QualificationRecord:
    return QualificationRecord(
        runtime_build=runtime_build,
        graph_root=built.graph.root,
        kernels=dict(built.build.kernels),
        device=dict(built.build.device),
        probes=(WARM_UP,),
    )
