"""Matrices in panels: where every element goes, in whatever runs they come."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.kernel_layout import packed_shape
from services.common.checkpoint.pack import GATE, UP, WHOLE, Elements, PanelPlace, pack, pack_gated, put

SIZES = st.tuples(st.integers(1, 100), st.integers(1, 40))


def numbered(rows: int, columns: int) -> Elements:
    """A matrix without a zero, so that padding shows."""
    return np.arange(1, rows * columns + 1, dtype=np.uint16).reshape(rows, columns)


def by_definition(matrix: Elements) -> Elements:
    rows, columns = matrix.shape
    packed = np.zeros((-(-rows // 32), -(-columns // 2), 32, 2), np.uint16)
    for i, j in itertools.product(range(rows), range(columns)):
        packed[i // 32, j // 2, i % 32, j % 2] = matrix[i, j]
    return packed


@pytest.mark.parametrize("shape", [(1, 1), (32, 2), (33, 3), (64, 16), (31, 7), (100, 34)])
def test_every_element_is_where_the_layout_has_it(shape: tuple[int, int]) -> None:
    """Element (i, j) is at [i // 32, j // 2, i % 32, j % 2], and what pads is zero.

    Fault injection: turns red when _put_in_panel swaps the two of a pair.
    """
    matrix = numbered(*shape)
    assert by_definition(matrix).tobytes() == pack(matrix).tobytes()


@pytest.mark.parametrize("shape", [(32, 4), (33, 3), (96, 10)])
def test_gate_and_up_lie_panel_by_panel(shape: tuple[int, int]) -> None:
    """Even panels are gate's, odd ones up's, so that one pass has both of every column.

    Fault injection: turns red when UP begins with the first panel.
    """
    gate = numbered(*shape)
    up = gate + np.uint16(gate.size)
    packed = pack_gated(gate, up)
    assert by_definition(gate).tobytes() == packed[0::2].tobytes()
    assert by_definition(up).tobytes() == packed[1::2].tobytes()


@given(SIZES, st.integers(0, 70), st.sampled_from([WHOLE, GATE, UP]), st.data())
def test_runs_may_begin_and_end_anywhere(
    size: tuple[int, int], first_row: int, place: PanelPlace, data: st.DataObject
) -> None:
    """However a matrix is cut, and in whatever order the runs come, it is as if it had come as one, and no more.

    Fault injection: turns red when put takes a run that begins within a row for whole rows.
    """
    matrix, place = numbered(*size), place._replace(first_row=first_row)
    panels, *rest = packed_shape(first_row + size[0], size[1])
    at_once = np.zeros((2 * panels, *rest), np.uint16)
    put(at_once, matrix.ravel(), 0, size[1], place)
    cuts = sorted({0, matrix.size, *data.draw(st.sets(st.integers(0, matrix.size), max_size=5))})
    runs = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    piecemeal = np.zeros_like(at_once)
    for begin, end in runs:
        put(piecemeal, matrix.ravel()[begin:end], begin, size[1], place)
    assert at_once.tobytes() == piecemeal.tobytes()
    stacked = by_definition(np.vstack([np.zeros((first_row, size[1]), np.uint16), matrix]))
    assert stacked.tobytes() == at_once[place.first_panel :: place.every][: len(stacked)].tobytes()
    assert matrix.size == np.count_nonzero(at_once)
