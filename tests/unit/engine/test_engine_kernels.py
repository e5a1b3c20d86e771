"""The native kernels: products against double precision, one order of summation, threads that rest."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from services.engine.kernels.cpu.library import InstructionSet
from services.engine.kernels.cpu.native_kernels import NativeKernels
from services.engine.kernels.cpu.team import Team
from services.engine.kernels.portable import PortableOperations
from tests.unit.engine.decoding import Decoding
from tests.unit.engine.test_engine_exactness import prompts

STORE, ADD, GATED = range(3)
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
SIZES = pytest.mark.parametrize(
    ("columns", "inner"), [(64, 64), (37, 50), (3, 16), (130, 96), (96, 200), (5, 1)]
)


def matrices(rows: int, columns: int, inner: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, inner, generator=generator).to(dtype)
    return x, torch.randn(columns, inner, generator=generator).to(dtype)


@DTYPES
@SIZES
def test_a_product_is_right(
    columns: int, inner: int, dtype: torch.dtype, instructions: InstructionSet
) -> None:
    """Stored and added, for sizes that fill no vector, against double precision."""
    x, w = matrices(23, columns, inner, dtype)
    y, sums = torch.full((23, columns), torch.nan), torch.ones(23, columns)
    team = Team(instructions, 2)
    team.linear(x, w, y, STORE)
    team.linear(x, w, sums, ADD)
    expected = x.double() @ w.double().T
    torch.testing.assert_close(expected.float(), y, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(expected.float() + 1, sums, atol=1e-4, rtol=1e-5)


@DTYPES
def test_a_gated_product_is_right(dtype: torch.dtype, instructions: InstructionSet) -> None:
    """silu(gate) * up, also where the gate is far from zero."""
    x, w = matrices(70, 2 * 45, 33, dtype)
    w *= 4
    y = torch.empty(70, 45, dtype=dtype)
    Team(instructions, 2).linear(x, w, y, GATED)
    gate, up = (x.double() @ w.double().T).chunk(2, dim=1)
    expected = (torch.nn.functional.silu(gate) * up).to(dtype)
    torch.testing.assert_close(expected, y, atol=1e-4, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4)


@DTYPES
@SIZES
def test_a_row_has_the_same_bits_in_every_company(
    columns: int, inner: int, dtype: torch.dtype, instructions: InstructionSet
) -> None:
    """Alone, among up to 40, at any place, with one thread or three."""
    x, w = matrices(40, columns, inner, dtype)
    whole = torch.empty(40, columns)
    teams = [Team(instructions, 1), Team(instructions, 3)]
    teams[0].linear(x, w, whole, STORE)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 16, 31):
        for first in (0, 1, 9):
            for team in teams:
                part = torch.empty(rows, columns)
                team.linear(x[first : first + rows], w, part, STORE)
                assert whole[first : first + rows].numpy().tobytes() == part.numpy().tobytes()


@DTYPES
@SIZES
def test_portable_products_keep_their_bits_too(columns: int, inner: int, dtype: torch.dtype) -> None:
    """The same law for the portable set, by padding."""
    x, w = matrices(40, columns, inner, dtype)
    whole = PortableOperations().linear(x, w)
    for rows in (1, 2, 3, 7, 8, 16, 31):
        part = PortableOperations().linear(x[5 : 5 + rows], w)
        assert torch.equal(whole[5 : 5 + rows], part)


def test_a_decoder_has_the_same_bits_with_any_number_of_threads(
    artifacts: dict[str, Path], instructions: InstructionSet
) -> None:
    """Who computes a tile does not matter."""
    one, three = (
        Decoding(artifacts["grouped"], NativeKernels(instructions, threads), "auto").together(
            prompts(), 8, chunk_tokens=50
        )
        for threads in (1, 3)
    )
    assert one == three


def test_a_team_ends_its_threads(instructions: InstructionSet) -> None:
    """Threads of the library are gone when their kernels are."""

    def threads() -> int:
        names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
        return names.count("halogen-step")

    before = threads()
    team = Team(instructions, 4)
    assert before + 3 == threads()
    del team
    gc.collect()
    assert before == threads()


def test_other_python_threads_run_during_a_step(instructions: InstructionSet) -> None:
    """A call into the library gives up the interpreter's lock: the event loop is never held up by a step."""
    x, w = matrices(256, 4096, 1024, torch.float32)
    y = torch.empty(256, 4096)
    team, turns, done = Team(instructions, 1), [0], threading.Event()

    def turn() -> None:
        while not done.is_set():
            turns[0] += 1

    other = threading.Thread(target=turn)
    other.start()
    before = turns[0]
    team.linear(x, w, y, STORE)
    during = turns[0] - before
    done.set()
    other.join()
    assert during > 0


def test_there_is_one_openmp_runtime() -> None:
    """Ours has threads of its own, so torch's is the only one in the process."""
    script = """
import re, torch
from services.engine.kernels.choice import choose_kernels
choose_kernels("auto", 2)
torch.ones(1000, 1000) @ torch.ones(1000, 1000)
print(*sorted(set(re.findall(r"/\\S*(?:libgomp|libomp|libiomp)\\S*", open("/proc/self/maps").read()))))
"""
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert 1 == len(found.stdout.splitlines()[-1].split())


def test_a_step_of_nothing_sampled_computes_no_logits(
    artifacts: dict[str, Path], instructions: InstructionSet
) -> None:
    """A chunk in the middle of a prompt stores keys and values, and that is all."""
    decoding = Decoding(artifacts["grouped"], NativeKernels(instructions, 1), "auto")
    (whole,) = decoding.together(prompts((100,)), 2, chunk_tokens=512)
    (cut,) = decoding.together(prompts((100,)), 2, chunk_tokens=30)
    assert whole == cut
    assert (512,) == np.stack(cut.logits).shape[1:]
