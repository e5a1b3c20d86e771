"""Random tensors to lay out."""

from __future__ import annotations

from hypothesis import strategies as st

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.layout import TensorSpec

SHAPES = st.lists(st.integers(1, 40), max_size=3).map(tuple)


@st.composite
def tensor_specs(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    """Tensors alone and in groups, names all different."""
    specs: list[TensorSpec] = []
    for index in range(draw(st.integers(0, 6))):
        members = draw(st.integers(1, 3))
        group = f"group-{index}" if members > 1 or draw(st.booleans()) else ""
        specs += [
            TensorSpec(
                name=f"tensor-{index}-{member}",
                dtype=draw(st.sampled_from(DType)),
                shape=draw(SHAPES),
                group=group,
            )
            for member in range(members)
        ]
    return tuple(specs)
