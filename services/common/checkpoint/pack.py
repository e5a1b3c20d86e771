"""Matrices of 16-bit elements in panels: PACKED32's definition, done run by run, in whatever order runs come.

A weight is read by the block, and blocks end anywhere in a row; so what is put is a run of consecutive elements.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from services.common.checkpoint.kernel_layout import PAIR, PANEL_ROWS, packed_shape

_STAGGER: Final = 16  # elements: one line of a cache

Elements = npt.NDArray[np.uint16]


class PanelPlace(NamedTuple):
    """Which panels of a packed matrix the rows of one of its parts go to.

    Attributes:
        first_row: Of the part, among the rows of the panels that it fills.
        first_panel: The first of those panels.
        every: One of so many panels is such a one.
    """

    first_row: int = 0
    first_panel: int = 0
    every: int = 1

    def of(self, row: int) -> tuple[int, int]:
        """The panel of the part's row, and its place in it."""
        panel, slot = divmod(self.first_row + row, PANEL_ROWS)
        return self.first_panel + panel * self.every, slot


WHOLE: Final = PanelPlace()
GATE: Final = PanelPlace(every=2)
UP: Final = PanelPlace(first_panel=1, every=2)


def pack(matrix: Elements) -> Elements:
    """A matrix [rows, columns] in PACKED32, [panels, pairs, 32, 2]."""
    packed = np.zeros(packed_shape(*matrix.shape), np.uint16)
    put(packed, matrix.ravel(), 0, matrix.shape[1], WHOLE)
    return packed


def pack_gated(gate: Elements, up: Elements) -> Elements:
    """Two matrices of one shape as one of twice as many panels: a panel of gate's, one of up's, in turn."""
    panels, *rest = packed_shape(*gate.shape)
    packed = np.zeros((2 * panels, *rest), np.uint16)
    put(packed, gate.ravel(), 0, gate.shape[1], GATE)
    put(packed, up.ravel(), 0, up.shape[1], UP)
    return packed


def put(packed: Elements, run: Elements, start: int, columns: int, place: PanelPlace) -> None:
    """Puts a run of a row-major matrix where it belongs; nothing else of `packed` is written.

    Args:
        packed: [panels, pairs, 32, 2].
        run: Consecutive elements of the matrix.
        start: The first one's index in the matrix, row after row.
        columns: Of the matrix.
        place: Of the matrix's rows in `packed`.
    """
    row, column = divmod(start, columns)
    if column:
        head, run = run[: columns - column], run[columns - column :]
        _put_part(packed, head, column, place.of(row))
        row += 1
    rows = len(run) // columns
    _put_rows(packed, run[: rows * columns].reshape(rows, columns), row, place)
    if len(rest := run[rows * columns :]):
        _put_part(packed, rest, 0, place.of(row + rows))


def _put_rows(packed: Elements, rows: Elements, first: int, place: PanelPlace) -> None:
    done = 0
    while done < len(rows):
        panel, slot = place.of(first + done)
        some = rows[done : done + PANEL_ROWS - slot]
        _put_in_panel(packed[panel, :, slot : slot + len(some)], some)
        done += len(some)


def _put_in_panel(target: Elements, rows: Elements) -> None:
    """Whole rows [n, columns] into a panel's [pairs, n, 2]."""
    if rows.shape[1] % PAIR == 0:
        target.view(np.uint32)[..., 0] = _at_odd_strides(rows.view(np.uint32)).T
        return
    for parity in range(PAIR):
        some = rows[:, parity::PAIR].T
        target[: len(some), :, parity] = some


def _at_odd_strides(rows: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A copy whose rows do not all begin in the same set of a CPU's cache, where they would drive each other out."""
    count, columns = rows.shape
    copy = np.empty((count, columns + _STAGGER), np.uint32)[:, :columns]
    copy[:] = rows
    return copy


def _put_part(packed: Elements, part: Elements, column: int, at: tuple[int, int]) -> None:
    """A piece of one row, from `column` on."""
    panel, slot = at
    line = packed[panel, :, slot]
    for parity in range(PAIR):
        skipped = (parity - column) % PAIR
        some = part[skipped::PAIR]
        begin = (column + skipped) // PAIR
        line[begin : begin + len(some), parity] = some
