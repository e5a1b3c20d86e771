"""How soon a model's first token is there, with our loader and without, and how many models a minute one loader gives."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.cold import make_cold
from bench.figure import Figure
from bench.huge_tmpfs import huge_tmpfs
from bench.lone_loader import lone_loader
from bench.program import program
from services.common.ids import ArtifactId

WEIGHTS: Final = "model.halogen"
LOADS: Final = 7  # of the repeated ones; the first only brings something to replace
_ROOM: Final = 1.3  # times a model: for one at a time


class Model(NamedTuple):
    """A model in both forms.

    Attributes:
        name: For people.
        suffix: Of its figures' names.
    """

    name: str
    suffix: str
    source: Path
    store: Path
    artifact_id: ArtifactId

    @property
    def safetensors(self) -> Path:
        return self.source / "model.safetensors"

    @property
    def weights(self) -> Path:
        return self.store / self.artifact_id / WEIGHTS

    def files(self, cache: Path) -> tuple[Path, ...]:
        """All that may be read of its weights, packed in that cache or not."""
        return self.safetensors, self.weights, *cache.rglob(f"{self.artifact_id}.*")


class Start(NamedTuple):
    """Seconds until the weights were in their places, and until the first token."""

    loaded_s: float
    first_token_s: float


class Starts(NamedTuple):
    """Of one model, round by round."""

    model: Model
    v1: list[Start]
    v2: list[Start]

    def lines(self) -> list[str]:
        return [
            _line(f"{self.model.name}, {path}", starts) for path, starts in (("v1", self.v1), ("v2", self.v2))
        ]

    def figures(self, goal: float) -> list[Figure]:
        """What is promised of them."""
        suffix = self.model.suffix
        ratios = [v1.loaded_s / v2.loaded_s for v1, v2 in zip(self.v1, self.v2, strict=True)]
        return [
            Figure(name=f"v2_vs_v1_load{suffix}", value=statistics.median(ratios), unit="x", goal=goal),
            _first_token(f"v1_first_token_s{suffix}", self.v1),
            _first_token(f"v2_first_token_s{suffix}", self.v2),
        ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """How starts are measured.

    Attributes:
        place: The flags that say where a loader puts weights.
        threads: Of the loader, that read.
        cache: Where loaders keep what they pack.
    """

    place: Sequence[str]
    threads: int
    logs: Path
    cache: Path

    async def rounds(self, model: Model, count: int) -> Starts:
        """Both paths in turns, every start cold and in a process of its own; before them the weights are packed, once."""
        starts = Starts(model, [], [])
        await self._start(model, "v2", [])
        for number in range(count):
            order = ("v1", "v2") if number % 2 else ("v2", "v1")
            tokens = {await self._start(model, path, getattr(starts, path)) for path in order}
            assert len(tokens) == 1, "the two paths answer with different tokens"
        return starts

    async def _start(self, model: Model, path: str, starts: list[Start]) -> int:
        """One start; returns the token."""
        what = str(model.source) if path == "v1" else model.artifact_id
        async with (
            lone_loader(model.store, self._place, self.threads, self.logs) as loader,
            program("bench.first_token", loader.address, logs=self.logs) as engine,
        ):
            make_cold(*model.files(self.cache))
            told = await engine.ask(path, what)
        starts.append(Start(told["loaded_s"], told["first_token_s"]))
        return int(told["token"])

    @property
    def _place(self) -> tuple[str, ...]:
        return (*self.place, "--cache-dir", str(self.cache))

    async def models_per_minute(self, models: Sequence[Model], point: Path) -> Figure:
        """One loader with room for one model, asked for one and the other in turns; each replaces the last one."""
        seconds: list[float] = []
        async with self._one_at_a_time(models[0], point) as place:
            if not place:
                return _per_minute(None, "no tmpfs of huge pages can be mounted here; run as root")
            async with (
                lone_loader(models[0].store, place, self.threads, self.logs) as loader,
                program("bench.mapping_engine", loader.address, logs=self.logs) as engine,
            ):
                for number in range(LOADS):
                    model = models[number % len(models)]
                    make_cold(model.weights)
                    seconds.append((await engine.ask(model.artifact_id))["seconds"])
        return _per_minute(60 / statistics.median(seconds[1:]))

    @contextlib.asynccontextmanager
    async def _one_at_a_time(self, model: Model, point: Path) -> AsyncIterator[tuple[str, ...]]:
        """The flags of a loader that has room for one such model; none where that cannot be had."""
        with huge_tmpfs(point, int(model.weights.stat().st_size * _ROOM)) as mounted:
            where = ("--place", "tmpfs", "--weights-dir", str(mounted), "--keep-s", "0")
            yield where if mounted else ()


def _line(name: str, starts: list[Start]) -> str:
    loaded, first = (statistics.median(column) for column in zip(*starts, strict=True))
    return f"{name:34} loaded after {loaded * 1e3:7.0f} ms, first token after {first * 1e3:7.0f} ms"


def _first_token(name: str, starts: list[Start]) -> Figure:
    value = statistics.median(start.first_token_s for start in starts)
    return Figure(name=name, value=value, unit="s", better="lower")


def _per_minute(value: float | None, skipped: str = "") -> Figure:
    return Figure(name="models_per_minute", value=value, unit="models", skipped=skipped)
