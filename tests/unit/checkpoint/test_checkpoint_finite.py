"""Which numbers are finite: what numpy says of floats, and OCP's table of 8 bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.finite import first_not_finite
from services.loader.elements import FLOATS, to_float32


@given(st.sampled_from(FLOATS), st.binary(max_size=64).filter(lambda data: len(data) % 4 == 0))
def test_the_first_that_is_not_finite_is_found(dtype: DType, data: bytes) -> None:
    """Whatever the bits. Turns red when: one of the two maxima is left out."""
    wrong = np.flatnonzero(~np.isfinite(to_float32(data, dtype)))
    assert (int(wrong[0]) if len(wrong) else None) == first_not_finite(data, dtype)


@pytest.mark.parametrize(
    ("dtype", "not_finite"),
    [
        (DType.FP8_E4M3, {0x7F, 0xFF}),
        (DType.FP8_E5M2, {*range(0x7C, 0x80), *range(0xFC, 0x100)}),
        (DType.INT8, set()),
    ],
)
def test_every_number_of_8_bits(dtype: DType, not_finite: set[int]) -> None:
    """All 256 of each kind."""
    found = {byte for byte in range(256) if first_not_finite(bytes([0, byte]), dtype) == 1}
    assert not_finite == found
