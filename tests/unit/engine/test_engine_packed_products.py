"""Products with packed weights: against double precision, and one order of summation whatever the company."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.engine.kernels.cpu.library import InstructionSet
from services.engine.kernels.cpu.native_kernels import NativeKernels
from services.engine.kernels.cpu.team import Team
from tests.unit.engine.decoding import Decoding
from tests.unit.engine.packing import PackingKernels, packed_gate_up, packed_matrix
from tests.unit.engine.test_engine_exactness import prompts
from tests.unit.engine.test_engine_kernels import ADD, GATED, STORE, matrices

SIZES = pytest.mark.parametrize(
    ("columns", "inner"), [(64, 64), (37, 50), (3, 16), (130, 97), (96, 200), (5, 1), (33, 577), (16, 3)]
)
ROWS = (1, 2, 3, 5, 11, 12, 13, 24, 25, 37)


def stored(team: Team, x: torch.Tensor, packed: torch.Tensor, columns: int) -> torch.Tensor:
    y = torch.full((len(x), columns), torch.nan)
    team.packed_linear(x.contiguous(), packed, y, columns, STORE)
    return y


@SIZES
def test_a_packed_product_is_right(columns: int, inner: int, instructions: InstructionSet) -> None:
    """Stored and added, whatever the number of rows, for sizes that fill no panel and no pair.

    Fault injection: turns red when put() leaves the last element of an odd row out.
    """
    x, w = matrices(max(ROWS), columns, inner, torch.bfloat16)
    packed, expected = packed_matrix(w), (x.double() @ w.double().T).float()
    for rows in ROWS:
        sums = torch.ones(rows, columns)
        Team(instructions, 2).packed_linear(x[:rows].contiguous(), packed, sums, columns, ADD)
        torch.testing.assert_close(expected[:rows] + 1, sums, atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(
            expected[:rows], stored(Team(instructions, 2), x[:rows], packed, columns), atol=1e-4, rtol=1e-5
        )


@SIZES
def test_a_gated_packed_product_is_right(columns: int, inner: int, instructions: InstructionSet) -> None:
    """silu(gate) * up from panels that take turns, also where the gate is far from zero."""
    x, w = matrices(max(ROWS), 2 * columns, inner, torch.bfloat16)
    w *= 4
    gate, up = (x.double() @ w.double().T).chunk(2, dim=1)
    expected = (torch.nn.functional.silu(gate) * up).bfloat16()
    for rows in ROWS:
        y = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16)
        Team(instructions, 2).packed_linear(x[:rows].contiguous(), packed_gate_up(w), y, 2 * columns, GATED)
        torch.testing.assert_close(expected[:rows], y, atol=1e-4, rtol=1e-2)


@SIZES
def test_a_row_of_a_packed_product_has_the_same_bits_in_every_company(
    columns: int, inner: int, instructions: InstructionSet
) -> None:
    """Alone, among up to 40, at any place, with one thread or three.

    Fault injection: turns red when multiply_strip adds two halves of the pairs for strips of one row.
    """
    x, w = matrices(40, columns, inner, torch.bfloat16)
    packed, teams = packed_matrix(w), [Team(instructions, 1), Team(instructions, 3)]
    whole = stored(teams[0], x, packed, columns)
    for rows in ROWS:
        for first in (0, 1, 3):
            for team in teams:
                part = stored(team, x[first : first + rows], packed, columns)
                assert whole[first : first + rows].numpy().tobytes() == part.numpy().tobytes()


def test_a_large_sum_stays_within_its_bound(instructions: InstructionSet) -> None:
    """One chain of float32 additions: the error stays below n eps times the sum of magnitudes, and far below."""
    x, w = matrices(3, 64, 11008, torch.bfloat16)
    y = stored(Team(instructions, 2), x, packed_matrix(w), 64)
    magnitudes = x.double().abs() @ w.double().abs().T
    errors = (y - x.double() @ w.double().T).abs() / magnitudes
    assert float(errors.max()) < 1e-6


@pytest.mark.parametrize("model", ["stories-v1", "odd_sizes", "biased"])
def test_a_packed_decoder_differs_from_one_row_after_row_by_rounding_only(
    model: str, artifacts: dict[str, Path], instructions: InstructionSet
) -> None:
    """Teacher-forced on the same tokens, logits are close."""
    plain = Decoding(artifacts[model], NativeKernels(instructions, 2), "auto").together(prompts(), 8)
    packed = Decoding(artifacts[model], PackingKernels(instructions, 2), "auto").forced(
        prompts(), [a.ids for a in plain]
    )
    for one, other in zip(plain, packed, strict=True):
        for ours, theirs in zip(one.logits, other.logits, strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs), atol=0.15, rtol=0.05)
