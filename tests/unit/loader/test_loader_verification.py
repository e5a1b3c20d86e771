"""An artifact compared with its source: what differs is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import Storage
from services.common.errors import CorruptData
from services.loader.conversion import convert
from services.loader.verification import verify
from tests.tiny_checkpoints import TinyShape, random_tensors, write_tensors, write_tiny_checkpoint

UP = "model.layers.0.mlp.up_proj.weight"
SHAPE = TinyShape(dtype=DType.FP32)


@pytest.mark.parametrize("policy", QuantPolicy)
def test_an_artifact_is_its_source_in_any_dtype(tmp_path: Path, policy: QuantPolicy) -> None:
    """However it was divided and rounded; the numbers of tensors and files are told."""
    source = write_tiny_checkpoint(tmp_path / "source", SHAPE)
    options = ConversionOptions(quant_policy=policy, storage=Storage(4, 2))
    manifest = convert(source, tmp_path / "artifact", options=options)
    notes: list[str] = []
    assert manifest == verify(source, tmp_path / "artifact", note=notes.append)
    assert notes[0].startswith("21 tensors and 4 files equal; the worst is model.")


def change_value(source: Path) -> None:
    tensors = random_tensors(SHAPE, 0)
    tensors[UP][95, 63] += 1e-3
    (source / "model.safetensors").unlink()
    write_tensors(source / "model.safetensors", tensors)


def change_config(**changes: Any) -> Callable[[Path], object]:
    def apply(source: Path) -> None:
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps(config | changes))

    return apply


DIFFERING: dict[str, tuple[Callable[[Path], object], str]] = {
    "one value of 6,144": (change_value, f"tensor {UP}"),
    "a field": (change_config(rope_theta=5e5), "config.json is not the source's"),
    "a file less": (lambda source: (source / "generation_config.json").unlink(), "generation_config.json"),
}


@pytest.mark.parametrize("case", DIFFERING)
def test_what_differs_is_named(tmp_path: Path, case: str) -> None:
    """The source was changed after the conversion. Fault injection: `verify` compares a SAMPLE of one element."""
    source = write_tiny_checkpoint(tmp_path / "source", SHAPE)
    convert(source, tmp_path / "artifact", options=ConversionOptions(quant_policy=QuantPolicy.BF16))
    change, expected = DIFFERING[case]
    change(source)
    with pytest.raises(CorruptData, match=expected):
        verify(source, tmp_path / "artifact")


def test_a_damaged_artifact_is_not_compared(tmp_path: Path) -> None:
    """Its own digests say so first."""
    source = write_tiny_checkpoint(tmp_path / "source")
    convert(source, tmp_path / "artifact")
    content = bytearray((tmp_path / "artifact/model.halogen").read_bytes())
    content[-1] ^= 1
    (tmp_path / "artifact/model.halogen").write_bytes(content)
    with pytest.raises(CorruptData, match="block 0 of 1 does not match its digest"):
        verify(source, tmp_path / "artifact")
