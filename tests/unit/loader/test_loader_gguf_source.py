"""GGUF files become artifacts: dequantised when told so, kept as they are otherwise."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from services.common.checkpoint.conversion_options import ConversionOptions, QuantPolicy, Validation
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.errors import Unsupported
from services.loader.conversion import convert
from services.loader.gguf import unpack_gguf
from services.loader.gguf_tensor import GgufTensor, unpermute
from tests.unit.loader.gguf_files import ROWS_OF_64, permute, random_values, write_gguf, write_qwen2


def artifact_tensors(directory: Path) -> dict[str, bytes]:
    content = (directory / "model.halogen").read_bytes()
    return {name: content[entry.offset : entry.end] for name, entry in Header.decode(content).tensors.items()}


QUANTISED = [gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16")]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_a_quantised_file_is_dequantised_when_told_so(
    tmp_path: Path, kind: gguf.GGMLQuantizationType
) -> None:
    """Each value is what its block stands for, in float32; q and k in Hugging Face's order."""
    values = random_values()
    path = write_gguf(tmp_path / "m.gguf", values, kinds=dict.fromkeys(ROWS_OF_64, kind))
    notes: list[str] = []
    fp32 = ConversionOptions(quant_policy=QuantPolicy.FP32, validation=Validation.FULL)
    convert(path, tmp_path / "a", options=fp32, note=notes.append)
    for name in ROWS_OF_64:
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2], 0)
        rows = permute(values[name], heads) if heads else values[name]
        rows = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
        values[name] = unpermute(rows, heads) if heads else rows
    expected = {name: value.astype(np.float32).tobytes() for name, value in values.items()}
    assert expected == artifact_tensors(tmp_path / "a")
    assert (kind.name == "BF16") is not any("dequantised: " + kind.name in note for note in notes)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K])
def test_rows_of_256_come_in_superblocks(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Read a few rows at a time, they are what the gguf package makes of the whole tensor."""
    rng = np.random.default_rng(0)
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 64, (3000, 2 * block_bytes), np.uint8)  # small scales: all of it is finite
    (tmp_path / "blocks").write_bytes(b"head" + blocks.tobytes())
    tensor = GgufTensor(
        path=tmp_path / "blocks",
        name="w",
        shape=(3000, 512),
        heads=0,
        kind=kind,
        offset=4,
        stored_bytes=blocks.nbytes,
    )
    pieces = [bytes(piece) for piece in tensor.pieces()]
    assert len(pieces) > 1
    assert gguf.quants.dequantize(blocks, kind).astype(np.float32).tobytes() == b"".join(pieces)


@pytest.mark.parametrize("heads", [0, 4])
def test_a_stretch_is_what_lies_there_in_the_whole(tmp_path: Path, heads: int) -> None:
    """Rows, or heads where rows are permuted. Fault injection: turns red when `GgufTensor._read` begins at row 0."""
    kind = gguf.GGMLQuantizationType.Q8_0
    blocks = gguf.quants.quantize(np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32), kind)
    (tmp_path / "blocks").write_bytes(blocks.tobytes())
    path, size = tmp_path / "blocks", blocks.nbytes
    tensor = GgufTensor(
        path=path, name="w", shape=(32, 64), heads=heads, kind=kind, offset=0, stored_bytes=size
    )
    assert (8 * 64 if heads else 64) == tensor.grain
    whole = b"".join(bytes(piece) for piece in tensor.pieces())
    begin, end = 2 * tensor.grain, 4 * tensor.grain
    assert whole[4 * begin : 4 * end] == b"".join(bytes(piece) for piece in tensor.stretch(begin, end))


def test_a_quantised_file_is_never_blown_up_unasked(tmp_path: Path) -> None:
    """It is refused with what it takes, what it would take, and how to ask."""
    path = write_gguf(tmp_path / "m.gguf", random_values())
    with pytest.raises(
        Unsupported, match=r"Q8_0 \(1\) of \d+ bytes are \d+ bytes in bf16.*--quant-policy bf16"
    ):
        convert(path, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_an_unquantised_file_is_kept(tmp_path: Path) -> None:
    """float32 stays float32, straight into the artifact; its directory does as well as the file."""
    (tmp_path / "model").mkdir()
    path = write_gguf(tmp_path / "model/m.gguf", random_values(), kinds={})
    first = convert(path, tmp_path / "a")
    expected = {name: value.tobytes() for name, value in random_values().items()}
    assert expected == artifact_tensors(tmp_path / "a")
    assert first.id == convert(tmp_path / "model", tmp_path / "b").id


@pytest.mark.parametrize(("kind", "dtype"), [("BF16", DType.BF16), ("F16", DType.FP16)])
def test_a_file_of_halves_with_norms_in_float32_is_kept(tmp_path: Path, kind: str, dtype: DType) -> None:
    """As llama.cpp writes them: nothing is quantised, so no policy is asked for, and no bit is lost.

    Fault injection: turns red when `apply_policy` leaves vectors as they are.
    """
    half, values = gguf.GGMLQuantizationType[kind], random_values()
    for name, value in values.items():
        values[name] = gguf.quants.dequantize(gguf.quants.quantize(value, half), half)
    matrices = {name: half for name, value in values.items() if value.ndim == 2}
    path = write_gguf(tmp_path / "m.gguf", values, kinds=matrices)
    manifest = convert(path, tmp_path / "a", options=ConversionOptions(validation=Validation.FULL))
    expected = {name: gguf.quants.quantize(value, half).tobytes() for name, value in values.items()}
    assert (dtype, expected) == (manifest.architecture.dtype, artifact_tensors(tmp_path / "a"))


def test_a_file_of_the_qwen2_family_is_kept_with_its_biases(tmp_path: Path) -> None:
    """Straight into an artifact, rows as they are; the biases of q, k and v lie back to back."""
    rows = {"q": 64, "k": 32, "v": 32}
    names = [f"model.layers.0.self_attn.{part}_proj.bias" for part in rows]
    values = random_values() | {
        name: np.arange(count, dtype=np.float32) for name, count in zip(names, rows.values(), strict=True)
    }
    full = ConversionOptions(validation=Validation.FULL)
    convert(write_qwen2(tmp_path / "m.gguf", values), tmp_path / "a", options=full)
    assert {name: value.tobytes() for name, value in values.items()} == artifact_tensors(tmp_path / "a")
    tensors = Header.decode((tmp_path / "a/model.halogen").read_bytes()).tensors
    q, k, v = (tensors[name] for name in names)
    assert (q.end, k.end) == (k.offset, v.offset)


def test_by_way_of_hugging_face_or_straight_is_the_same(tmp_path: Path) -> None:
    """bf16 weights and every small file: one artifact id."""
    path = write_gguf(tmp_path / "m.gguf", random_values())
    unpack_gguf(path, tmp_path / "hf")
    bf16 = ConversionOptions(quant_policy=QuantPolicy.BF16)
    assert convert(tmp_path / "hf", tmp_path / "a").id == convert(path, tmp_path / "b", options=bf16).id
