"""Random tensors to lay out, and the architecture that their header claims."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import strategies as st

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import TensorSpec
from services.common.checkpoint.quantisation import Quantisation
from tests.tiny_checkpoints import TinyShape

SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)
FLOATS = st.sampled_from((DType.BF16, DType.FP16, DType.FP32))
ARCHITECTURE = Architecture.from_config(TinyShape().config(), DType.BF16)


@st.composite
def tensor_specs(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    """Tensors alone and in groups, names all different, scales behind what they scale."""
    specs: list[TensorSpec] = []
    for index in range(draw(st.integers(0, 6))):
        members = draw(st.integers(1, 3))
        group = f"group-{index}" if members > 1 or draw(st.booleans()) else ""
        drawn = [_tensor(draw, f"tensor-{index}-{member}", group) for member in range(members)]
        specs += drawn
        specs += [scale for spec in drawn for scale in _scales(draw, spec)]
    return tuple(specs)


def _tensor(draw: st.DrawFn, name: str, group: str) -> TensorSpec:
    dtype = draw(st.sampled_from(DType))
    shape = draw(SHAPES)
    if dtype is DType.INT4:
        shape = (*shape[:2], 2 * draw(st.integers(1, 20)))
    return TensorSpec(
        name=name, dtype=dtype, shape=shape, group=group, quantisation=_quantisation(draw, name, dtype, shape)
    )


def _quantisation(draw: st.DrawFn, name: str, dtype: DType, shape: tuple[int, ...]) -> Quantisation | None:
    if not dtype.takes_scales or (not dtype.needs_scales and draw(st.booleans())):
        return None
    return Quantisation(
        scales=f"{name}.scales",
        biases=f"{name}.biases" if draw(st.booleans()) else "",
        block=tuple(draw(st.integers(1, size)) for size in shape),
    )


def _scales(draw: st.DrawFn, spec: TensorSpec) -> Iterator[TensorSpec]:
    if spec.quantisation is None:
        return
    for name in spec.quantisation.parameters:
        shape = spec.quantisation.shape_of_scales(spec.shape)
        assert math.prod(shape) <= math.prod(spec.shape)
        yield TensorSpec(name=name, dtype=draw(FLOATS), shape=shape)
