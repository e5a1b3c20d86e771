"""How fast weights come from the disk to where an engine uses them, beside other loaders and what the disk gives.

First one big model (3.75 GB of bf16): our loader in a fresh process, for one engine, a second one, and a later one;
beside it safetensors, fastsafetensors, runai-model-streamer and torch.load, each in a fresh process, and fio. Nothing is
in the page cache, everybody's every page is there when the clock stops, and ours alone has checked what it read. Then
the way to the first token, for SmolLM2-135M and a Llama of 1.1 billion weights: our loader (v2) beside a safetensors
file that is read and copied (v1). All of it in interleaved rounds, of which medians count.

    make bench BENCH=loader        or        python -m bench.loader --rounds 5 --json figures.json

It makes its files in a work directory (12 GB, removed in the end). A figure that cannot be measured here says why.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import checkpoints
from bench.checkpoints import Shape
from bench.figure import Figure, write_figures
from bench.huge_tmpfs import enter_own_mounts, huge_tmpfs
from bench.program import REPOSITORY
from bench.reading import Reading
from bench.samples import Samples
from bench.starts import Model, Starter
from services.cli import demo
from services.cli.home import Home
from services.common.checkpoint.artifact_store import ArtifactStore

FASTER = 3.0  # the promise: so many times as fast as v1
_ROOM = 6 << 30  # of the tmpfs


class Bench:
    """The measurements, one after the other.

    Args:
        options: The command line's.
        folder: For all files.
        huge_pages: A directory on a tmpfs of huge pages, or None.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, huge_pages: Path | None) -> None:
        self._options = options
        self._folder = folder
        self._huge_pages = huge_pages
        self._logs = folder / "logs"
        self._logs.mkdir(exist_ok=True)
        (folder / "store").mkdir(exist_ok=True)

    async def figures(self) -> list[Figure]:
        return [*await self._read(), *await self._start()]

    async def _read(self) -> list[Figure]:
        with self._source("big", checkpoints.SMALL if self._options.small else checkpoints.BIG) as model:
            torch_file = checkpoints.torch_file(self._folder / "big.pt", model.source)
            reading = Reading(
                store=model.store,
                artifact_id=model.artifact_id,
                safetensors=model.safetensors,
                torch_file=torch_file,
                huge_pages=self._huge_pages,
                threads=self._options.threads,
                logs=self._logs,
            )
            samples = Samples()
            await reading.rounds(self._options.rounds, samples)
            print(*samples.lines(), sep="\n", flush=True)
            self._remove(torch_file)
            return reading.figures(samples)

    async def _start(self) -> list[Figure]:
        figures: list[Figure] = []
        place = ("--place", "tmpfs", "--weights-dir", str(self._huge_pages)) if self._huge_pages else ()
        cache = self._folder / "cache"
        starter = Starter(place=place, threads=self._options.threads, logs=self._logs, cache=cache)
        shape = checkpoints.SMALL if self._options.small else checkpoints.TINY_LLAMA
        with self._source("llama", shape) as llama, self._source("other", shape, seed=1) as other:
            for model in (llama,) if self._options.small else (llama, self._smollm2()):
                starts = await starter.rounds(model, self._options.rounds)
                print(*starts.lines(), sep="\n", flush=True)
                figures += starts.figures(FASTER)
            figures.append(await starter.models_per_minute([llama, other], self._folder / "one"))
        return figures

    @contextmanager
    def _source(self, name: str, shape: Shape, seed: int = 0) -> Iterator[Model]:
        """A random model and its artifact, for the scope."""
        source = checkpoints.source(self._folder / name, shape, seed)
        store = self._folder / "store"
        model = Model(name, "", source, store, checkpoints.artifact(store, source))
        yield model
        self._remove(source)
        self._remove(model.weights.parent)

    def _smollm2(self) -> Model:
        (home := Home.find()).make()
        model, store = demo.ensure(home.models), self._folder / "store"
        return Model(
            "smollm2", "_smollm2", model.hugging_face, store, ArtifactStore(store).put(model.artifact)
        )

    def _remove(self, path: Path) -> None:
        if self._options.keep:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def host() -> str:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores, {memory_bytes >> 30} GiB, Linux {platform.release()}, load {load}"


def run(options: argparse.Namespace) -> list[Figure]:
    folder: Path = options.dir / "loader-bench"
    folder.mkdir(parents=True, exist_ok=True)
    how = f"{options.rounds} rounds, {options.threads} threads; files out of the page cache, seen gone by mincore"
    print(host(), how, sep="\n", flush=True)
    try:
        with _huge_pages(options.huge_pages, folder / "huge") as huge_pages:
            return asyncio.run(Bench(options, folder, huge_pages).figures())
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _huge_pages(given: Path | None, point: Path) -> Iterator[Path | None]:
    if given:
        yield given
        return
    with huge_tmpfs(point, _ROOM) as mounted:
        yield mounted


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="of everything; medians count")
    parser.add_argument("--threads", type=int, default=8, help="threads that read, for everybody")
    parser.add_argument("--dir", type=Path, default=REPOSITORY / ".halogen", help="where its files are made")
    parser.add_argument(
        "--huge-pages", type=Path, metavar="DIR", help="a tmpfs mounted huge=always, if none can be"
    )
    parser.add_argument(
        "--small", action="store_true", help="64 MB instead: shows that it works, not how fast"
    )
    parser.add_argument("--keep", action="store_true", help="keep the files for the next run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    enter_own_mounts("bench.loader")
    figures = run(options)
    print(*figures, sep="\n")
    if options.json:
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
