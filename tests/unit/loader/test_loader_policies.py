"""What a conversion may be asked for: dtypes, ranks, validation; and what it reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy, Validation
from services.common.checkpoint.digest import Buffer
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.layout import Storage
from services.common.checkpoint.writer import write_weights
from services.common.errors import CorruptData, HalogenError, InvalidRequest, Unsupported
from services.loader import recast
from services.loader.conversion import convert
from services.loader.elements import FLOATS, from_float32, rounding, to_float32
from tests.tiny_checkpoints import TinyShape, random_tensors, write_tensors, write_tiny_checkpoint

NORM = "model.norm.weight"
UP = "model.layers.0.mlp.up_proj.weight"


def options(policy: str = "keep", **rest: Any) -> ConversionOptions:
    return ConversionOptions(quant_policy=QuantPolicy(policy), **rest)


def stored(artifact: Path) -> dict[str, npt.NDArray[np.float32]]:
    content = (artifact / "model.halogen").read_bytes()
    entries = Header.decode(content).tensors.items()
    return {name: to_float32(content[entry.offset : entry.end], entry.dtype) for name, entry in entries}


def with_tensors(source: Path, **changed: npt.NDArray[Any]) -> Path:
    """The float32 checkpoint with tensors put in the place of its own."""
    tensors = random_tensors(TinyShape(dtype=DType.FP32), 0) | changed
    (source / "model.safetensors").unlink()
    write_tensors(source / "model.safetensors", tensors)
    return source


@pytest.fixture
def fp32(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "source", TinyShape(dtype=DType.FP32))


@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp16"])
def test_weights_come_in_the_dtype_asked_for(tmp_path: Path, fp32: Path, policy: str) -> None:
    """Rounded to nearest, and so again what numpy and torch would have made of them."""
    notes: list[str] = []
    manifest = convert(fp32, tmp_path / "a", options=options(policy), note=notes.append)
    dtype = DType(policy)
    assert dtype is manifest.architecture.dtype
    values = random_tensors(TinyShape(dtype=DType.FP32), 0)
    expected = {
        name: to_float32(from_float32(value, dtype).tobytes(), dtype) for name, value in values.items()
    }
    found = stored(tmp_path / "a")
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name].ravel(), found[name]) for name in found)
    told = {"fp32": [], "bf16": ["rounded to bf16"], "fp16": ["rounded to fp16", "stored in fp16:"]}
    assert told[policy] == [note[:15] for note in notes]


def test_an_artifact_is_a_source(tmp_path: Path, fp32: Path) -> None:
    """The same policy gives the same artifact; another one, that of the original source."""
    first = convert(fp32, tmp_path / "a")
    assert first.id == convert(tmp_path / "a", tmp_path / "b").id
    expected = convert(fp32, tmp_path / "c", options=options("bf16")).id
    assert expected == convert(tmp_path / "a", tmp_path / "d", options=options("bf16")).id


@pytest.mark.parametrize("name", ["model.halogen", "tokenizer.json"])
def test_a_damaged_artifact_is_no_source(tmp_path: Path, fp32: Path, name: str) -> None:
    """Every byte is verified before the first is used. Fault injection: `read_artifact` verifies no weights."""
    convert(fp32, tmp_path / "a")
    content = bytearray((tmp_path / "a" / name).read_bytes())
    content[-5000] ^= 1
    (tmp_path / "a" / name).write_bytes(content)
    with pytest.raises(CorruptData, match=name):
        convert(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_mixed_dtypes_become_one(tmp_path: Path, fp32: Path) -> None:
    """Matrices are not: refused with the option that does it, and then done."""
    source = with_tensors(fp32, **{UP: random_tensors(TinyShape(dtype=DType.FP16), 0)[UP]})
    with pytest.raises(Unsupported, match="--quant-policy bf16"):
        convert(source, tmp_path / "a")
    convert(source, tmp_path / "a", options=options("fp16", validation=Validation.FULL))
    assert DType.FP16 is read_manifest(tmp_path / "a").architecture.dtype


def with_norm_in_fp32(source: Path, excess: float) -> Path:
    """The bf16 checkpoint, its last norm in float32, every value larger by `excess`."""
    tensors = random_tensors(TinyShape(), 0)
    norm = to_float32(tensors[NORM].tobytes(), DType.BF16) + np.float32(excess)
    (source / "model.safetensors").unlink()
    write_tensors(source / "model.safetensors", tensors | {NORM: norm})
    return source


def test_a_norm_takes_the_dtype_of_the_matrices_where_nothing_is_lost(tmp_path: Path) -> None:
    """float32 beside weights in bf16, but of values that bf16 has: the artifact is that of a norm in bf16.

    Fault injection: turns red when `_with_exact_vectors` finds nothing exact.
    """
    source, notes = write_tiny_checkpoint(tmp_path / "source"), list[str]()
    expected = convert(source, tmp_path / "a").id
    full = options(validation=Validation.FULL)
    made = convert(with_norm_in_fp32(source, 0), tmp_path / "b", options=full, note=notes.append)
    assert (expected, "stored in bf16, which has all their values: fp32 (1) norms and biases") == (
        made.id,
        notes[0],
    )


def test_a_norm_that_would_be_rounded_is_refused(tmp_path: Path) -> None:
    """Nothing is rounded unasked. Fault injection: turns red when `_survives` says yes to everything."""
    source = with_norm_in_fp32(write_tiny_checkpoint(tmp_path / "source"), 1e-6)
    with pytest.raises(Unsupported, match=f"{NORM} is fp32.* is bf16.*: halogen convert --quant-policy bf16"):
        convert(source, tmp_path / "a")


@pytest.mark.parametrize(
    ("value", "policy", "kind", "expected"),
    [
        (
            np.nan,
            "keep",
            CorruptData,
            rf"{NORM} holds NaN or infinity, the first at \[7\].*; fetch the source again",
        ),
        (-np.inf, "keep", CorruptData, rf"{NORM} holds NaN or infinity, the first at \[7\]"),
        (np.nan, "bf16", CorruptData, f"{NORM} holds NaN"),
        (-np.inf, "fp16", CorruptData, f"{NORM} holds NaN or infinity"),
        (70_000, "fp16", InvalidRequest, f"{NORM} has values of up to 70000.*fp32"),
        (3.4e38, "bf16", InvalidRequest, f"{NORM} has values of up to 3.4e"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused(
    tmp_path: Path, fp32: Path, value: float, policy: str, kind: type[HalogenError], expected: str
) -> None:
    """NaN, infinity, and what the dtype has no number for: the tensor is named, nothing is left.

    Fault injection: turns red when `StoredTensor.pieces` gives its range unseen.
    """
    norm = np.ones(64, np.float32)
    norm[7] = value
    with pytest.raises(kind, match=expected):
        convert(with_tensors(fp32, **{NORM: norm}), tmp_path / "a", options=options(policy))
    assert {"source"} == {path.name for path in tmp_path.iterdir()}


def test_ranks_that_cannot_share_the_tensors_are_refused(tmp_path: Path, fp32: Path) -> None:
    """The message names the count, and the sizes that would do; one rank alone has whole blocks, too.

    Turns red when: `_check_blocks` looks at nothing.
    """
    with pytest.raises(InvalidRequest, match=r"num_key_value_heads is 2, which 4 .*: 1, 2$"):
        convert(fp32, tmp_path / "a", options=options(storage=Storage(1, 4)))
    with pytest.raises(
        InvalidRequest, match=r"self_attn\.k_proj.*not a multiple of 2 ranks x 32; give a --block-size"
    ):
        convert(fp32, tmp_path / "a", options=options(storage=Storage(32, 2)))
    with pytest.raises(InvalidRequest, match=r"k_proj.* 32 rows, not a multiple of 64; give a --block-size"):
        convert(fp32, tmp_path / "a", options=options(storage=Storage(64, 1)))
    convert(fp32, tmp_path / "a", options=options(storage=Storage(16, 2)))
    header = Header.decode((tmp_path / "a/model.halogen").read_bytes())
    assert Storage(16, 2) == header.storage
    for bad in (Storage(0, 1), Storage(1, 0), Storage(1, 1 << 21)):
        with pytest.raises(InvalidRequest, match="give 1 to"):
            options(storage=bad)


@pytest.mark.parametrize("validation", ["sample", "full"])
@pytest.mark.parametrize("policy", QuantPolicy)
def test_a_good_conversion_validates(
    tmp_path: Path, fp32: Path, policy: QuantPolicy, validation: str
) -> None:
    """Rounding is no deviation; the worst tensor is named."""
    notes: list[str] = []
    chosen = options(policy, validation=Validation(validation))
    convert(fp32, tmp_path / "a", options=chosen, note=notes.append)
    assert f"validated ({validation}): the worst tensor is model." in notes[-1]
    assert notes[-1].endswith(", 0 relative beyond rounding")


def bend(factor: float) -> Any:
    """A converter that gets one value of one tensor a little wrong."""
    pieces = recast.RecastTensor.pieces

    def bent(self: recast.RecastTensor) -> Iterator[memoryview]:
        for piece in pieces(self):
            values = to_float32(piece, self.dtype).copy()
            if self.name == UP:
                values[17] *= factor
            yield from_float32(values, self.dtype).data.cast("B")

    return bent


@pytest.mark.parametrize("validation", ["sample", "full"])
def test_a_bent_value_fails_the_validation(
    tmp_path: Path, fp32: Path, monkeypatch: pytest.MonkeyPatch, validation: str
) -> None:
    """One of 6,144 values is off by a hundredth: the tensor is named and no artifact is left.

    Fault injection: `_largest` takes the mean in the place of the maximum.
    """
    monkeypatch.setattr(recast.RecastTensor, "pieces", bend(1.01))
    with pytest.raises(CorruptData, match=f"validation failed: tensor {UP}, 0.00"):
        convert(fp32, tmp_path / "a", options=options("fp16", validation=Validation(validation)))
    assert {"source"} == {path.name for path in tmp_path.iterdir()}


def test_wrong_bytes_fail_even_where_nothing_is_rounded(
    tmp_path: Path, fp32: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zero that is none any more is infinitely wrong."""

    def damaging(path: Path, *rest: Any, **more: Any) -> Header:
        header = write_weights(path, *rest, **more)
        with path.open("r+b") as file:
            file.seek(header.tensors[NORM].offset)
            file.write(np.float32(1e-30).tobytes())
        return header

    monkeypatch.setattr("services.loader.conversion.write_weights", damaging)
    source = with_tensors(fp32, **{NORM: np.zeros(64, np.float32)})
    with pytest.raises(CorruptData, match=f"{NORM}, inf relative"):
        convert(source, tmp_path / "a", options=options(validation=Validation.FULL))


def test_values_too_small_for_their_dtype_fail_the_validation(tmp_path: Path, fp32: Path) -> None:
    """A tensor of which float16 leaves nothing but zeros is not what it was; float32 beside it is.

    Fault injection: turns red when all that is below the least float16 counts as rounding.
    """
    source = with_tensors(fp32, **{NORM: np.full(64, 1e-9, np.float32)})
    fp16, bf16 = (options(policy, validation=Validation.FULL) for policy in ("fp16", "bf16"))
    with pytest.raises(CorruptData, match=rf"{NORM}, 0.999 relative.*--quant-policy bf16"):
        convert(source, tmp_path / "a", options=fp16)
    convert(source, tmp_path / "b", options=bf16)


def test_what_engines_have_to_copy_is_told(tmp_path: Path, fp32: Path) -> None:
    """Weights in float16 are served from copies: whoever makes them is told so, and what else to do."""
    notes: list[str] = []
    for policy in ("bf16", "fp16"):
        convert(fp32, tmp_path / policy, options=options(policy), note=notes.append)
    assert 1 == sum("copies in fp32" in note for note in notes)


@given(st.lists(st.floats(-60_000, 60_000, width=32), min_size=1), st.sampled_from(FLOATS))
@example([1.1826959038901456e-42, 1.0], DType.BF16)  # below the least subnormal
def test_rounding_is_within_its_bound(values: list[float], dtype: DType) -> None:
    """What validation allows for is what nearest rounding does, to the last bit, beside a value of ordinary size."""
    source = np.array([*values, 1.0], np.float32)
    back = to_float32(from_float32(source, dtype).tobytes(), dtype)
    assert (np.abs(back - source) <= rounding(np.abs(source), DType.FP32, dtype)).all()


@given(st.sampled_from(FLOATS), st.binary(min_size=4, max_size=64).filter(lambda data: len(data) % 4 == 0))
def test_elements_survive_float32(dtype: DType, data: Buffer) -> None:
    """Every finite element of every dtype comes back as it was."""
    values = to_float32(data, dtype)
    if np.isfinite(values).all():
        assert bytes(data) == from_float32(values, dtype).tobytes()


def test_copies_are_found_by_content(tmp_path: Path, fp32: Path) -> None:
    """A head equal to the embedding and a frozen duplicate are named, with what they cost."""
    tensors = random_tensors(TinyShape(dtype=DType.FP32), 0)
    copies = {
        "lm_head.weight": tensors["model.embed_tokens.weight"],
        "model.layers.1.mlp.up_proj.weight": tensors["model.layers.1.mlp.gate_proj.weight"],
    }
    notes: list[str] = []
    convert(with_tensors(fp32, **copies), tmp_path / "a", note=notes.append)
    head, up = notes
    assert "redundant, 131072 bytes: lm_head.weight (the same as model.embed_tokens.weight)" == head
    assert up.startswith("redundant, 24576 bytes: model.layers.1.mlp.up_proj.weight (the same as ")


@pytest.mark.parametrize("name", ["model.safetensors", "another.safetensors"])
def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path, fp32: Path, name: str) -> None:
    """A file written to or added while it is read: named, and nothing is left. A log beside it may grow.

    Fault injection: `convert` does not check that the source is unchanged.
    """

    def meddle(_done: int, _total: int) -> None:
        (fp32 / "train.log").write_text("step 2")
        with (fp32 / name).open("ab") as file:
            file.write(b"more")

    with pytest.raises(CorruptData, match=f"{name} changed while it was converted"):
        convert(fp32, tmp_path / "a", meddle)
    assert {"source"} == {path.name for path in tmp_path.iterdir()}


def test_the_first_of_many_is_named_by_its_row_and_column(tmp_path: Path, fp32: Path) -> None:
    """Beyond the first piece as well. Fault injection: turns red when `all_finite` counts no pieces before."""
    shape = TinyShape(dtype=DType.FP32, vocab_size=20_480)  # of 64 values: 5 MiB
    source = write_tiny_checkpoint(tmp_path / "large", shape)
    tensors = random_tensors(shape, 0)
    tensors["lm_head.weight"][18_000, 3] = tensors["lm_head.weight"][18_001, 0] = np.inf
    (source / "model.safetensors").unlink()
    write_tensors(source / "model.safetensors", tensors)
    with pytest.raises(
        CorruptData, match=r"lm_head\.weight holds NaN or infinity, the first at \[18000, 3\]"
    ):
        convert(source, tmp_path / "a")
