"""Preparations opened and asked, for tests."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, MemoryGuard
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.flight import Done
from services.loader.metrics import LoaderMetrics
from services.loader.place import Place
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.residents import Prepared


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


TWO_THREADS = Reading(threads=2)


def open_preparations(
    store: ArtifactStore,
    *places: Place,
    keep_s: float = 10.0,
    clock: Clock | None = None,
    guard: MemoryGuard = UNGUARDED,
    reading: Reading = TWO_THREADS,
) -> Preparations:
    return Preparations(
        ArtifactsInPlace(store),
        places,
        reading=reading,
        keep_s=keep_s,
        metrics=LoaderMetrics(CollectorRegistry()),
        guard=guard,
        clock_s=clock or Clock(),
    )


async def prepare(preparations: Preparations, artifact_id: ArtifactId) -> tuple[list[Done], Prepared]:
    """All the progress, and what came of it."""
    steps = [step async for step in preparations.prepare(artifact_id)]
    result = steps.pop()
    assert isinstance(result, Prepared)
    return [step for step in steps if isinstance(step, Done)], result


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
