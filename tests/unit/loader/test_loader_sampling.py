"""`--validate sample`: some of every tensor is compared, from its beginning to its end."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy, Validation
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.writer import write_weights
from services.common.errors import CorruptData
from services.loader.conversion import convert
from services.loader.sampling import sampled_stretches
from tests.tiny_checkpoints import TinyShape, write_tiny_checkpoint

LARGE = TinyShape(dtype=DType.FP32, vocab_size=40_960)  # of 64 values: 10 MiB
HEAD = "lm_head.weight"
VALUES = 40_960 * 64


@pytest.mark.parametrize(
    ("elements", "grain", "most", "expected"),
    [
        (10, 1, 16, [range(10)]),
        (70, 1, 7, [range(at, at + 1) for at in (0, 11, 23, 34, 46, 57, 69)]),
        (100, 1, 28, [range(at, at + 4) for at in (0, 16, 32, 48, 64, 80, 96)]),
        (80, 10, 40, [range(10), range(20, 30), range(40, 50), range(70, 80)]),
        (50, 10, 5, [range(10), range(20, 30), range(40, 50)]),
        (30, 10, 5, [range(30)]),
    ],
)
def test_stretches_lie_evenly(elements: int, grain: int, most: int, expected: list[range]) -> None:
    """Seven where so many grains are allowed, three at least; all that is no more than that is one."""
    assert tuple(expected) == sampled_stretches(elements, grain, most)


@given(st.integers(1, 10_000), st.integers(1, 500), st.integers(1, 100_000))
def test_beginning_and_end_are_always_there(grains: int, grain: int, most: int) -> None:
    """In whole grains, rising, never twice the same, and no more than was allowed."""
    stretches = sampled_stretches(grains * grain, grain, most)
    assert (0, grains * grain) == (stretches[0].start, stretches[-1].stop)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(stretches))
    assert all(0 < len(each) and not each.start % grain and not each.stop % grain for each in stretches)
    assert sum(map(len, stretches)) <= max(most, 3 * grain)


@pytest.mark.parametrize("policy", ["keep", "bf16"])
@pytest.mark.parametrize("place", [0, VALUES // 2, VALUES - 1])
def test_a_value_in_a_sampled_place_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, policy: str
) -> None:
    """The first, the middle and the last of 2,621,440 values, whatever they are stored in.

    Fault injection: turns red when `sampled_stretches` gives the first stretch alone, or `_pieces` tells of every
    stretch that it begins at 0.
    """

    def damaging(path: Path, *rest: Any, **more: Any) -> Header:
        header = write_weights(path, *rest, **more)
        entry = header.tensors[HEAD]
        with path.open("r+b") as file:
            file.seek(entry.offset + entry.dtype.nbytes((place,)))
            file.write(np.float32(1.5).tobytes()[-entry.dtype.bits // 8 :])
        return header

    monkeypatch.setattr("services.loader.conversion.write_weights", damaging)
    options = ConversionOptions(quant_policy=QuantPolicy(policy), validation=Validation.SAMPLE)
    with pytest.raises(CorruptData, match=f"validation failed: tensor {HEAD}"):
        convert(write_tiny_checkpoint(tmp_path / "source", LARGE), tmp_path / "a", options=options)


def test_what_is_right_is_found_right(tmp_path: Path) -> None:
    """Stretches of 10 MiB, the same in source and artifact."""
    notes: list[str] = []
    options = ConversionOptions(quant_policy=QuantPolicy.BF16, validation=Validation.SAMPLE)
    convert(
        write_tiny_checkpoint(tmp_path / "source", LARGE), tmp_path / "a", options=options, note=notes.append
    )
    assert notes[-1].endswith(", 0 relative beyond rounding")
