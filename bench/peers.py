"""``python -m bench.peers NAME FILE --threads N``: another loader reads FILE once, when told to by a line.

Its answer names seconds, bytes and the peak of memory beyond what the process had when it was ready. Every page is
there when the clock stops, as it is for ours.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from bench.peak import Peak
from bench.touch import touch

Read = Callable[[Path], Iterable[torch.Tensor]]


class Peer(NamedTuple):
    """Another loader.

    Attributes:
        package: What must be installed.
        is_safetensors: Whether it reads safetensors; else a file of torch.save.
        prepare: Imports it and gives its reader for so many threads.
    """

    package: str
    is_safetensors: bool
    prepare: Callable[[int], Read]

    @property
    def obstacle(self) -> str:
        """Why it cannot be run; empty if it can."""
        there = importlib.util.find_spec(self.package) is not None
        return "" if there else f"{self.package} is missing; pip install -e '.[bench]'"


def _safetensors_mapped(_threads: int) -> Read:
    library: Any = importlib.import_module("safetensors.torch")
    return lambda path: library.load_file(path).values()


def _safetensors_read(_threads: int) -> Read:
    library: Any = importlib.import_module("safetensors.torch")
    return lambda path: library.load(path.read_bytes()).values()


def _fastsafetensors(threads: int) -> Read:
    library: Any = importlib.import_module("fastsafetensors")
    kept: list[Any] = []  # it owns the memory

    def read(path: Path) -> Iterator[torch.Tensor]:
        loader = library.SafeTensorsFileLoader(
            library.SingleGroup(), device="cpu", nogds=True, max_threads=threads
        )
        loader.add_filenames({0: [str(path)]})
        buffers = loader.copy_files_to_device()
        kept.extend((loader, buffers))
        return (buffers.get_tensor(name) for name in buffers.key_to_rank_lidx)

    return read


def _runai(threads: int) -> Read:
    os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(threads)
    library: Any = importlib.import_module("runai_model_streamer")

    def read(path: Path) -> list[torch.Tensor]:
        with library.SafetensorsStreamer() as streamer:
            streamer.stream_file(str(path))
            return [tensor for _, tensor in streamer.get_tensors()]  # they own their memory

    return read


def _torch_plain(_threads: int) -> Read:
    return lambda path: torch.load(path, weights_only=True, mmap=False).values()


def _torch_mapped(_threads: int) -> Read:
    return lambda path: torch.load(path, weights_only=True, mmap=True).values()


PEERS: Final = {
    "safetensors mmap": Peer("safetensors", True, _safetensors_mapped),
    "safetensors read": Peer("safetensors", True, _safetensors_read),
    "fastsafetensors": Peer("fastsafetensors", True, _fastsafetensors),
    "runai-model-streamer": Peer("runai_model_streamer", True, _runai),
    "torch.load mmap": Peer("torch", False, _torch_mapped),
    "torch.load": Peer("torch", False, _torch_plain),
}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, required=True, help="threads that read")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    read = PEERS[options.name].prepare(options.threads)
    print("ready", flush=True)
    sys.stdin.readline()
    peak, began_s = Peak.begin(os.getpid()), time.perf_counter()
    read_bytes = touch(tensors := list(read(options.file)))
    seconds = time.perf_counter() - began_s
    answer = {"seconds": seconds, "read_bytes": read_bytes, "peak_bytes": peak.beyond_bytes}
    print(json.dumps({**answer, "tensors": len(tensors)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
