"""All bytes of one big model, from the disk to where an engine uses them: ours, other loaders, and what the disk gives."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from bench import fio
from bench.cold import make_cold
from bench.figure import Figure
from bench.lone_loader import LoneLoader, lone_loader
from bench.peak import Peak
from bench.peers import PEERS
from bench.program import Program, program
from bench.samples import Sample, Samples
from services.common.ids import ArtifactId

COLD: Final = "halogen, fresh loader"
SECOND: Final = "halogen, second engine"
RESIDENT: Final = "halogen, resident"
FIO: Final = "fio, direct, huge-page buffer"
MAPPED: Final = "safetensors mmap"
OTHER_PAGES: Final = ("dev_shm", "memfd")
MIB: Final = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read, and with what.

    Attributes:
        store: Holds the artifact.
        safetensors: The same tensors.
        torch_file: The same again.
        huge_pages: A directory on a tmpfs of huge pages; None where the host gives none.
        threads: Of every loader that reads with threads.
    """

    store: Path
    artifact_id: ArtifactId
    safetensors: Path
    torch_file: Path
    huge_pages: Path | None
    threads: int
    logs: Path

    async def rounds(self, count: int, samples: Samples) -> None:
        """Everybody once a round, each round beginning with another one."""
        turns: list[Callable[[Samples], Awaitable[None]]] = [self._fio, self._ours]
        turns += [_turn(self._peer, name) for name in PEERS]
        turns += [_turn(self._other_pages, place) for place in OTHER_PAGES]
        for begin in range(count):
            for index in range(len(turns)):
                await turns[(begin + index) % len(turns)](samples)

    @property
    def weights(self) -> Path:
        return self.store / self.artifact_id / "model.halogen"

    async def _fio(self, samples: Samples) -> None:
        obstacle = fio.obstacle() or ("" if self.huge_pages else "no huge pages for its buffer")
        if obstacle or self.huge_pages is None:
            samples.skip(FIO, obstacle)
            return
        make_cold(self.weights)
        seconds = await asyncio.to_thread(fio.read_s, self.weights, self.huge_pages)
        samples.add(FIO, Sample(seconds=seconds, read_bytes=self.weights.stat().st_size))

    async def _peer(self, samples: Samples, name: str) -> None:
        peer = PEERS[name]
        if peer.obstacle:
            samples.skip(name, peer.obstacle)
            return
        path = self.safetensors if peer.is_safetensors else self.torch_file
        arguments = (name, str(path), "--threads", str(self.threads))
        async with program("bench.peers", *arguments, logs=self.logs) as running:
            make_cold(path)
            told = await running.ask("read")
        samples.add(name, _sample(told, told["peak_bytes"]))

    async def _ours(self, samples: Samples) -> None:
        """A fresh loader reads for one engine; a second one maps the same; one that comes when they are gone, too."""
        if self.huge_pages is None:
            samples.skip(COLD, "no tmpfs of huge pages: run as root, or give --huge-pages DIR")
            return
        place = ("--place", "tmpfs", "--weights-dir", str(self.huge_pages))
        async with lone_loader(self.store, place, self.threads, self.logs) as loader:
            async with self._engine(loader) as first, self._engine(loader) as second:
                samples.add(COLD, await self._cold(loader, first))
                samples.add(SECOND, _shared(await second.ask(self.artifact_id)))
            async with self._engine(loader) as later:
                samples.add(RESIDENT, _sample(await later.ask(self.artifact_id)))

    async def _other_pages(self, samples: Samples, place: str) -> None:
        async with (
            lone_loader(self.store, ("--place", place), self.threads, self.logs) as loader,
            self._engine(loader) as engine,
        ):
            samples.add(f"halogen, fresh loader, {place}", await self._cold(loader, engine))

    def _engine(self, loader: LoneLoader) -> Any:
        return program("bench.mapping_engine", loader.address, logs=self.logs)

    async def _cold(self, loader: LoneLoader, engine: Program) -> Sample:
        make_cold(self.weights)
        peak = Peak.begin(loader.program.pid)
        told = await engine.ask(self.artifact_id)
        return _sample(told, peak.beyond_bytes, "huge pages" if told["huge_pages"] else "4 KiB pages")

    def figures(self, samples: Samples) -> list[Figure]:
        """What is promised of it."""
        file_bytes = self.weights.stat().st_size
        why = "; ".join(samples.skipped.values())
        others = [name for name in PEERS if name not in (MAPPED, *samples.skipped)]
        next_best = min((r for name in others if (r := samples.ratio(COLD, name))), default=None)
        peak_bytes = samples.median(COLD, lambda sample: sample.peak_bytes or 0)
        second_s = samples.median(SECOND, lambda sample: sample.seconds)
        pss_share = samples.median(SECOND, lambda sample: sample.pss_share or 0)
        return [
            Figure(name="loader_vs_fio", value=samples.ratio(COLD, FIO), unit="x", goal=0.8, skipped=why),
            Figure(
                name="loader_vs_safetensors",
                value=samples.ratio(COLD, MAPPED),
                unit="x",
                goal=1.5,
                skipped=why,
            ),
            Figure(name="loader_vs_next_peer", value=next_best, unit="x", goal=2.0, skipped=why),
            Figure(name="loader_gb_per_s", value=samples.median(COLD, _rate), unit="GB/s", skipped=why),
            Figure(name="fio_gb_per_s", value=samples.median(FIO, _rate), unit="GB/s", skipped=why),
            _most("loader_peak_beyond_file", peak_bytes and (peak_bytes - file_bytes) / MIB, "MiB", 128, why),
            _most("second_engine_ms", second_s and second_s * 1e3, "ms", 100, why),
            _most("second_engine_pss_share", pss_share, "", 0.5, why),
        ]


def _turn(work: Callable[[Samples, str], Awaitable[None]], name: str) -> Callable[[Samples], Awaitable[None]]:
    return lambda samples: work(samples, name)


def _rate(sample: Sample) -> float:
    return sample.gb_per_s


def _most(name: str, value: float | None, unit: str, goal: float, why: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, goal=goal, better="lower", skipped=why)


def _sample(told: dict[str, Any], peak_bytes: int | None = None, note: str = "") -> Sample:
    return Sample(seconds=told["seconds"], read_bytes=told["read_bytes"], peak_bytes=peak_bytes, note=note)


def _shared(told: dict[str, Any]) -> Sample:
    """With what the kernel says of the mapping; the loader and another engine have one of the same file."""
    resident, pss, private = (told[f"{name}_bytes"] / MIB for name in ("resident", "pss", "private"))
    note = f"Rss {resident:.0f} MiB, Pss {pss:.0f} MiB, private {private:.0f} MiB"
    return dataclasses.replace(_sample(told, note=note), pss_share=pss / resident)
