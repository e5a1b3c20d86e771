"""Makes the golden weight files: ``python -m tests.unit.checkpoint.golden`` after a change of the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import Shard, Storage, TensorEntry, TensorSpec
from services.common.checkpoint.quantisation import Quantisation
from services.common.checkpoint.writer import write_weights
from tests.unit.checkpoint.strategies import ARCHITECTURE

FOLDER: Final = Path(__file__).parent / "golden"

Q4 = Quantisation(scales="packed.scales", biases="packed.biases", block=(1, 4))
FP8 = Quantisation(scales="eight.scales", block=(2, 4))


class Stored(NamedTuple):
    """A tensor and its bytes, written down here by hand."""

    spec: TensorSpec
    content: bytes


def _numbers(kind: str, *values: float) -> bytes:
    return np.array(values, kind).tobytes()


PLAIN: Final = (
    Stored(TensorSpec(name="whole", dtype=DType.FP32, shape=(2, 2)), _numbers("<f4", 1, -2, 0.5, 3e8)),
    Stored(
        TensorSpec(name="q", dtype=DType.BF16, shape=(2, 2), group="qk", shard=Shard.ROWS),
        bytes.fromhex("803f 00c0 003f 8ec3"),
    ),
    Stored(
        TensorSpec(name="k", dtype=DType.BF16, shape=(2, 2), group="qk", shard=Shard.ROWS),
        bytes.fromhex("0000 0080 8040 2041"),
    ),
    Stored(
        TensorSpec(name="half", dtype=DType.FP16, shape=(1, 4), shard=Shard.COLUMNS),
        _numbers("<f2", 1, -2, 0.5, 65504),
    ),
)
QUANTISED: Final = (
    Stored(
        TensorSpec(name="packed", dtype=DType.INT4, shape=(2, 4), quantisation=Q4), bytes.fromhex("10f2 8e73")
    ),
    Stored(TensorSpec(name="packed.scales", dtype=DType.FP16, shape=(2, 1)), _numbers("<f2", 0.5, 2)),
    Stored(TensorSpec(name="packed.biases", dtype=DType.FP16, shape=(2, 1)), _numbers("<f2", 0, 1)),
    Stored(
        TensorSpec(name="eight", dtype=DType.FP8_E4M3, shape=(2, 8), quantisation=FP8),
        bytes.fromhex("38 b8 30 7e 00 80 40 01 38 38 38 38 c0 c0 c0 c0"),
    ),
    Stored(TensorSpec(name="eight.scales", dtype=DType.FP32, shape=(1, 2)), _numbers("<f4", 1, 0.25)),
    Stored(TensorSpec(name="wide", dtype=DType.FP8_E5M2, shape=(4,)), bytes.fromhex("3c bc 38 7b")),
    Stored(
        TensorSpec(
            name="bytes",
            dtype=DType.INT8,
            shape=(4,),
            quantisation=Quantisation(scales="bytes.scales", block=(4,)),
        ),
        bytes.fromhex("01 ff 7f 80"),
    ),
    Stored(TensorSpec(name="bytes.scales", dtype=DType.BF16, shape=(1,)), bytes.fromhex("803f")),
)
VALUES: Final[dict[str, dict[str, list[Any]]]] = {
    "plain": {
        "whole": [[1, -2], [0.5, 3e8]],
        "q": [[1, -2], [0.5, -284]],
        "k": [[0, 0], [4, 10]],
        "half": [[1, -2, 0.5, 65504]],
    },
    "quantised": {
        "packed": [[0, 0.5, 1, -0.5], [-3, -15, 7, 15]],
        "eight": [[1, -1, 0.5, 448, 0, 0, 0.5, 0.25 * 2**-9], [1, 1, 1, 1, -0.5, -0.5, -0.5, -0.5]],
        "wide": [1, -1, 0.5, 57344],
        "bytes": [1, -1, 127, -128],
    },
}
FILES: Final = {"plain": (PLAIN, Storage(1, 2)), "quantised": (QUANTISED, Storage(block_rows=2))}


def write(name: str, path: Path) -> None:
    """Writes one of FILES."""
    tensors, storage = FILES[name]
    contents = {tensor.spec.name: tensor.content for tensor in tensors}

    def pieces_of(entry: TensorEntry) -> list[bytes]:
        return [contents[entry.name]]

    write_weights(path, [tensor.spec for tensor in tensors], ARCHITECTURE, pieces_of, storage=storage)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file in FILES:
        (FOLDER / f"{file}.halogen").unlink(missing_ok=True)
        write(file, FOLDER / f"{file}.halogen")
