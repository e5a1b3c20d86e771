"""Products and attention of every set of kernels, over a grid of shapes, against float64."""

from __future__ import annotations

import functools
from typing import Final

import pytest
import torch

from services.common.checkpoint.dtype import DType
from services.engine.kernels.cpu.library import INSTRUCTION_SETS
from services.engine.kernels.cpu.native_kernels import obstacle
from services.engine.kernels.cpu.team import Team
from services.engine.kernels.portable import PortableOperations
from services.engine.kv_format import KvFormat
from services.engine.model.rotary import Rotary
from tests.unit.engine.attending import Attending, KernelName, attended
from tests.unit.engine.packing import packed_gate_up, packed_matrix

STORE, ADD, GATED = range(3)
ROWS: Final = (1, 2, 3, 4, 5, 7, 11, 12, 13, 16, 31, 33, 64, 129, 600)
SUMMED: Final = 2**-22  # error of a sum of float32 products, over the lengths of the two vectors multiplied
BF16: Final = 2**-8  # what rounding to bfloat16 may cost, over the number

# heads, kv_heads, head_dim: what models have (64, 80, 96, 112, 128), and what fills no vector
SHAPES: Final = (
    (1, 1, 8),
    (5, 5, 10),
    (6, 2, 16),
    (2, 2, 34),
    (9, 3, 64),
    (14, 2, 64),
    (4, 4, 72),
    (8, 8, 80),
    (8, 2, 96),
    (3, 1, 112),
    (2, 1, 120),
    (16, 1, 128),
)
KV_DTYPES: Final = (DType.FP32, DType.BF16, DType.FP16, DType.INT8)
LENGTHS: Final = (600, 1, 16, 17, 33, 150)
# Tokens of each sequence in each step: chunks over the edges of blocks, decodes, and both together.
STEPS: Final = ((585, 1, 0, 16, 0, 7), (14, 0, 15, 0, 32, 1), (0, 0, 1, 1, 0, 141), (1, 0, 0, 0, 1, 1))


def runs(name: KernelName) -> KernelName:
    if name != "portable" and (why := obstacle(name)):
        pytest.skip(f"{name}: {why}")
    return name


@pytest.fixture(params=["portable", *INSTRUCTION_SETS])
def kernel_name(request: pytest.FixtureRequest) -> KernelName:
    return runs(request.param)


@pytest.fixture(params=["portable", *INSTRUCTION_SETS, *(f"{name} packed" for name in INSTRUCTION_SETS)])
def layout(request: pytest.FixtureRequest) -> tuple[KernelName, bool]:
    """A set of kernels, and whether its weights are packed."""
    name, _, packed = request.param.partition(" ")
    return runs(name), bool(packed)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(layout: tuple[KernelName, bool], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    name, is_packed = layout
    if name == "portable":
        return PortableOperations().linear(x, w)
    y, team = torch.full((len(x), len(w)), torch.nan), Team(name, 2)
    if is_packed:
        team.packed_linear(x, packed_matrix(w), y, len(w), STORE)
    else:
        team.linear(x, w, y, STORE)
    return y


def gated(layout: tuple[KernelName, bool], x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    name, is_packed = layout
    if name == "portable":
        return PortableOperations().gated_silu(PortableOperations().linear(x, w), x.dtype)
    y, team = torch.empty(len(x), len(w) // 2, dtype=x.dtype), Team(name, 2)
    if is_packed:
        team.packed_linear(x, packed_gate_up(w), y, len(w), GATED)
    else:
        team.linear(x, w, y, GATED)
    return y


def skip_unless_it_exists(layout: tuple[KernelName, bool], dtype: torch.dtype) -> None:
    if layout[1] and dtype is torch.float32:
        pytest.skip("weights in float32 are never packed")


def assert_within(bound: torch.Tensor, expected: torch.Tensor, actual: torch.Tensor) -> None:
    error = (expected - actual.double()).abs()
    assert bool((error <= bound).all()), f"{float((error / bound).max()):.2f} times what is allowed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("columns", "inner"),
    [(1, 1), (5, 1), (3, 16), (37, 50), (64, 64), (130, 96), (96, 200), (192, 576), (33, 1537)],
)
def test_a_product_is_within_its_bound(
    layout: tuple[KernelName, bool], columns: int, inner: int, dtype: torch.dtype
) -> None:
    """Rounding is that of float32 sums; torch's bfloat16 rounds the result too. Rows 1 to 600.

    Fault injection: turns red when dot_tail() or put() leaves out the last element.
    """
    skip_unless_it_exists(layout, dtype)
    x, w = random(max(ROWS), inner, seed=1).to(dtype), random(columns, inner, seed=2).to(dtype)
    expected = x.double() @ w.double().T
    bound = SUMMED * x.double().norm(dim=1)[:, None] * w.double().norm(dim=1)
    if layout[0] == "portable" and dtype is torch.bfloat16:
        bound += BF16 * expected.abs()
    for rows in ROWS:
        assert_within(bound[:rows], expected[:rows], product(layout, x[:rows], w))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("half", "inner"), [(1, 1), (45, 33), (32, 64), (96, 200), (70, 576)])
def test_a_gated_product_is_within_its_bound(
    layout: tuple[KernelName, bool], half: int, inner: int, dtype: torch.dtype
) -> None:
    """silu(gate) * up of sums in float32, rounded once; torch's bfloat16 rounds gate and up before.

    Fault injection: turns red when silu() leaves out the sign.
    """
    skip_unless_it_exists(layout, dtype)
    x, w = random(max(ROWS), inner, seed=1).to(dtype), random(2 * half, inner, seed=2).to(dtype)
    gate, up = (x.double() @ w.double().T).chunk(2, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    lengths = SUMMED * x.double().norm(dim=1)[:, None] * w.double().norm(dim=1)
    of_gate, of_up = lengths.chunk(2, dim=1)
    if layout[0] == "portable" and dtype is torch.bfloat16:
        of_gate, of_up = of_gate + BF16 * gate.abs(), of_up + BF16 * up.abs()
    bound = 1.1 * of_gate * up.abs() + torch.nn.functional.silu(gate).abs() * of_up + of_gate * of_up
    bound += (BF16 if dtype is torch.bfloat16 else 2**-21) * expected.abs() + 1e-30
    for rows in ROWS:
        assert_within(bound[:rows], expected[:rows], gated(layout, x[:rows], w))


def test_a_gate_alone_is_within_the_rounding_of_float32(kernel_name: KernelName) -> None:
    """Of sums that are exact: from where e^-x is below every float to where it is above.

    Fault injection: turns red when exp_lanes() leaves out its second coefficient.
    """
    gates = torch.linspace(-120, 120, 4001)[:, None]
    expected = torch.nn.functional.silu(gates.double())[:, 0]
    actual = gated((kernel_name, False), torch.ones(1, 1), torch.cat((gates, torch.ones_like(gates))))[0]
    assert_within(2**-21 * expected.abs() + 1e-35, expected, actual)


def exact(length: int, heads: int, kv_heads: int, head_dim: int, seed: int) -> torch.Tensor:
    """Queries, keys and values that every type of the cache stores as they are, in int8 by a scale of 1 / 32."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-127, 128, (length, heads + 2 * kv_heads, head_dim), generator=generator)
    whole[..., 0] = 127
    whole = whole.float() / 32
    whole[:, :heads] /= 8
    return whole.flatten(1)


@functools.cache
def sequences(
    shape: tuple[int, int, int], *, is_exact: bool
) -> tuple[Rotary, list[torch.Tensor], list[torch.Tensor]]:
    """Positions' angles, each sequence's qkv, and its attention in float64."""
    heads, kv_heads, head_dim = shape
    if is_exact:
        rotary = Rotary(torch.ones(max(LENGTHS), head_dim // 2), torch.zeros(max(LENGTHS), head_dim // 2))
        qkv = [exact(length, *shape, seed=i) for i, length in enumerate(LENGTHS)]
    else:
        rotary = Rotary.of(10_000.0, head_dim, max(LENGTHS))
        width = (heads + 2 * kv_heads) * head_dim
        qkv = [random(length, width, seed=i) for i, length in enumerate(LENGTHS)]
    return rotary, qkv, [attended(x, heads, kv_heads, rotary) for x in qkv]


def worst_error(
    kernels: KernelName, kv_dtype: DType, shape: tuple[int, int, int], *, is_exact: bool
) -> float:
    """The greatest error of any element, over the greatest value that was mixed."""
    heads, kv_heads, head_dim = shape
    rotary, qkv, expected = sequences(shape, is_exact=is_exact)
    attending = Attending(kernels, KvFormat(kv_dtype, 1, kv_heads, head_dim), heads, rotary, LENGTHS)
    mixed = attending.run(qkv, STEPS)
    greatest = max(float(x[:, (heads + kv_heads) * head_dim :].abs().max()) for x in qkv)
    errors = [(one - other.double()).abs().max() for one, other in zip(expected, mixed, strict=True)]
    return float(torch.stack(errors).max()) / greatest


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_attention_to_what_is_stored_is_within_its_bound(
    kernel_name: KernelName, kv_dtype: DType, shape: tuple[int, int, int]
) -> None:
    """Of numbers that are stored exactly: 3e-6 of the greatest value, and half a bfloat16 where weights are such.

    Fault injection: turns red when score_rows() or soften() leaves out int8's scales, or mix() the last key.
    """
    is_rounded = (kernel_name, kv_dtype) == ("avx512_bf16", DType.BF16)
    assert worst_error(kernel_name, kv_dtype, shape, is_exact=True) < 3e-6 + (2**-9 if is_rounded else 0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kv_dtype", "bound"),
    [(DType.FP32, 3e-6), (DType.FP16, 1e-3), (DType.BF16, 8e-3), (DType.INT8, 2e-2)],
)
def test_attention_to_random_numbers_is_within_its_bound(
    kernel_name: KernelName, kv_dtype: DType, bound: float, shape: tuple[int, int, int]
) -> None:
    """Rotated and rounded to what they are stored in, against numbers that are not."""
    assert worst_error(kernel_name, kv_dtype, shape, is_exact=False) < bound


def test_what_is_mixed_is_rounded_once(kernel_name: KernelName) -> None:
    """Weights in bfloat16: the same numbers, to the nearest of that type."""
    rotary, qkv, _ = sequences((9, 3, 64), is_exact=False)
    kv = KvFormat(DType.FP16, 1, 3, 64)
    whole, rounded = (
        Attending(kernel_name, kv, 9, rotary, LENGTHS, dtype).run(qkv, STEPS)
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert all(torch.equal(one.bfloat16(), other) for one, other in zip(whole, rounded, strict=True))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_attention_of_a_row_has_the_same_bits_however_its_sequence_is_cut(
    kernel_name: KernelName, kv_dtype: DType
) -> None:
    """Alone, among others, in pieces of 1 to 600."""
    shape = heads, kv_heads, head_dim = 9, 3, 64
    rotary, qkv, _ = sequences(shape, is_exact=False)
    kv = KvFormat(kv_dtype, 1, kv_heads, head_dim)
    together = Attending(kernel_name, kv, heads, rotary, LENGTHS).run(qkv, STEPS)
    for whole, x, length in zip(together, qkv, LENGTHS, strict=True):
        alone = Attending(kernel_name, kv, heads, rotary, [length])
        pieces = [
            (length - length // 2,),
            *[(1,)] * min(3, length // 2),
            (length // 2 - min(3, length // 2),),
        ]
        (cut,) = alone.run([x], [piece for piece in pieces if piece[0]])
        assert torch.equal(whole, cut)


def test_what_is_not_finite_stays_so_in_int8(kernel_name: KernelName) -> None:
    """A value that overflowed must be seen in the logits, not be taken for -128 times a scale.

    Fault injection: turns red when int8_scale() leaves out the poison.
    """
    rotary, qkv, _ = sequences((1, 1, 8), is_exact=False)
    spoilt = qkv[3].clone()
    spoilt[2, -1] = torch.nan
    attending = Attending(kernel_name, KvFormat(DType.INT8, 1, 1, 8), 1, rotary, [17])
    (mixed,) = attending.run([spoilt], [(2,), (15,)])
    assert bool(mixed[:2].isfinite().all())
    assert not bool(mixed[2:].isfinite().all(1).any())
