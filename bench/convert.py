"""Speed and memory of the converter, beside a plain write of the same bytes.

The source is a random Llama of TinyLlama's shape (1.1 billion weights in bf16, 2.2 GB of safetensors), in the page
cache. In turns: a file of the artifact's length is written from memory, 4 MiB at a time, and synced; the converter
runs as a process of its own, its start, its reading and all its syncs included.

    python bench/convert.py --rounds 5 --json figures.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.dtype import DType
from services.loader.safetensors_writer import write_safetensors

MIB: Final = 1 << 20
PIECE_BYTES: Final = 4 * MIB
TINYLLAMA: Final = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
}
SMALL: Final = {**TINYLLAMA, "hidden_size": 512, "intermediate_size": 1408, "vocab_size": 2000}
CONVERTER: Final = """
import re, sys
from services.loader.convert import main
status = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(status)
"""  # the kernel's own figure of a process counts what its parent held as well


class Source(NamedTuple):
    """A checkpoint on disk."""

    directory: Path
    largest_tensor_bytes: int


class Run(NamedTuple):
    """What a plain write took, and what a conversion took and held."""

    plain_s: float
    convert_s: float
    peak_bytes: int

    @property
    def ratio(self) -> float:
        return self.plain_s / self.convert_s


def write_source(directory: Path, shape: dict[str, int]) -> Source:
    """A checkpoint of random weights below 2, with a tokenizer of as many words as it has rows."""
    directory.mkdir()
    config = {**shape, "model_type": "llama", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config))
    words = {f"word{number}": number for number in range(shape["vocab_size"])}
    (directory / "tokenizer.json").write_text(Tokenizer(models.WordLevel(words, unk_token="word0")).to_str())
    specs = decoder_tensors(Architecture.from_config(config, DType.BF16))
    chance = np.random.default_rng(0)
    write_safetensors(
        directory / "model.safetensors", specs, (random_bf16(chance, spec.nbytes) for spec in specs)
    )
    return Source(directory, max(spec.nbytes for spec in specs))


def random_bf16(chance: np.random.Generator, nbytes: int) -> bytes:
    bits = np.frombuffer(chance.bytes(nbytes), np.uint16)
    return (bits & 0xBFFF).tobytes()  # exponents of at most 127


def plain_write(path: Path, content: memoryview) -> float:
    """Seconds until the content is on disk."""
    os.sync()  # what others left to be written is not ours to pay for
    begun = time.perf_counter()
    with path.open("xb", buffering=0) as file:
        for piece in pieces(content):
            file.write(piece)
        os.fsync(file.fileno())
    took_s = time.perf_counter() - begun
    path.unlink()
    return took_s


def pieces(content: memoryview) -> Iterator[memoryview]:
    for begin in range(0, len(content), PIECE_BYTES):
        yield content[begin : begin + PIECE_BYTES]


def convert(source: Source, artifact: Path) -> tuple[float, int]:
    """Seconds from the process's start to its end, and the most bytes that it held."""
    os.sync()
    command = [sys.executable, "-c", CONVERTER, str(source.directory), str(artifact), "--progress", "none"]
    begun = time.perf_counter()
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return time.perf_counter() - begun, int(said.splitlines()[-1]) << 10


def measure(folder: Path, shape: dict[str, int], rounds: int) -> tuple[Source, list[Run]]:
    source, artifact = write_source(folder / "source", shape), folder / "artifact"
    convert(source, artifact)  # to warm up, and for its bytes
    content = memoryview((artifact / "model.halogen").read_bytes())
    (source.directory / "model.safetensors").read_bytes()  # into the page cache
    runs = []
    for _ in range(rounds):
        shutil.rmtree(artifact)
        plain_s = plain_write(folder / "plain", content)
        runs.append(Run(plain_s, *convert(source, artifact)))
        print(
            f"  plain write {len(content) / plain_s / 1e9:5.2f} GB/s   convert "
            f"{len(content) / runs[-1].convert_s / 1e9:5.2f} GB/s   {runs[-1].ratio:5.2f} x   "
            f"peak {runs[-1].peak_bytes / MIB:.0f} MiB"
        )
    return source, runs


def figures(source: Source, runs: list[Run]) -> list[dict[str, Any]]:
    peak_goal = (2 * source.largest_tensor_bytes + 256 * MIB) // MIB
    ratio = statistics.median(run.ratio for run in runs)
    peak = max(run.peak_bytes for run in runs) // MIB
    return [
        {"name": "convert_vs_write", "value": ratio, "unit": "x", "goal": 0.6, "better": "higher"},
        {"name": "convert_peak", "value": peak, "unit": "MiB", "goal": peak_goal, "better": "lower"},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="pairs of runs; the median of their ratios counts"
    )
    parser.add_argument(
        "--dir", type=Path, help="where 7 GB may lie meanwhile; the disk of this checkout if not given"
    )
    parser.add_argument("--small", action="store_true", help="50 MB, to see that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir or Path.cwd(), prefix=".bench-") as folder:
        found = figures(*measure(Path(folder), SMALL if options.small else TINYLLAMA, options.rounds))
    for figure in found:
        print(f"{figure['name']}: {figure['value']:.2f} {figure['unit']}   (goal {figure['goal']})")
    if options.json:
        options.json.write_text(json.dumps({"figures": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
