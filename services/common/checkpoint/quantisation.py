"""Quantised tensors: which other tensors of the file scale their elements, and whether these are fit for it.

An element's value is ``stored * scale + bias``. Its scale is found by dividing its position by `block`, axis
by axis: scales have the shape of the tensor divided by `block`, rounded up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.finite import first_not_finite

_OF_SCALES: Final = frozenset({DType.FP32, DType.BF16, DType.FP16})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """Where a tensor's scales are.

    Attributes:
        scales: Name of the tensor that holds them, of bf16, fp16 or fp32.
        biases: Name of the tensor that holds the biases, shaped as the scales; empty where all are zero.
        block: How many elements along each axis share a scale.
    """

    scales: str
    biases: str = ""
    block: tuple[int, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the tensors that it needs."""
        return (self.scales, self.biases) if self.biases else (self.scales,)

    def shape_of_scales(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(-(-size // unit) for size, unit in zip(shape, self.block, strict=True))

    def to_fields(self) -> dict[str, Any]:
        return {"scales": self.scales, "biases": self.biases, "block": list(self.block)}

    @classmethod
    def from_fields(cls, value: Any, where: str) -> Self:
        """Raises ValueError unless it is what `to_fields` gave."""
        fields = Fields(value, f"quantisation of {where}")
        block = fields.take("block", list)
        if not all(type(size) is int and size >= 1 for size in block):
            raise ValueError(f"block of {where}'s quantisation is not a list of positive sizes")
        quantisation = cls(
            scales=fields.take("scales", str), biases=fields.take("biases", str), block=tuple(block)
        )
        fields.finish()
        return quantisation


class Stored(Protocol):
    """What is asked of a tensor here."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def quantisation(self) -> Quantisation | None: ...


def check_quantisation(tensors: Mapping[str, Stored]) -> None:
    """Raises ValueError, naming the tensor, unless all have the scales they need, and those are fit for it."""
    for tensor in tensors.values():
        if tensor.dtype is DType.INT4 and (not tensor.shape or tensor.shape[-1] % 2):
            raise ValueError(f"tensor {tensor.name} is int4 and its rows do not end on a byte")
        if tensor.quantisation is not None:
            _check_scaled(tensor, tensor.quantisation, tensors)
        elif tensor.dtype.needs_scales:
            raise ValueError(f"tensor {tensor.name} is {tensor.dtype} and has no scales")


def _check_scaled(tensor: Stored, quantisation: Quantisation, tensors: Mapping[str, Stored]) -> None:
    if not tensor.dtype.takes_scales:
        raise ValueError(f"tensor {tensor.name} is {tensor.dtype}, which takes no scales")
    if len(quantisation.block) != len(tensor.shape):
        raise ValueError(
            f"tensor {tensor.name} has {len(tensor.shape)} axes, its block of scales another number"
        )
    wanted = quantisation.shape_of_scales(tensor.shape)
    for name in quantisation.parameters:
        if name not in tensors:
            raise ValueError(f"tensor {tensor.name} is scaled by {name}, which is not there")
        if tensors[name].dtype not in _OF_SCALES or tensors[name].shape != wanted:
            raise ValueError(
                f"tensor {name} is not {list(wanted)} of bf16, fp16 or fp32, as {tensor.name} needs"
            )


def scale_names(tensors: Sequence[Stored]) -> frozenset[str]:
    """The names of all tensors that hold scales or biases."""
    return frozenset(_parameters(tensors))


def _parameters(tensors: Sequence[Stored]) -> Iterator[str]:
    for tensor in tensors:
        if tensor.quantisation is not None:
            yield from tensor.quantisation.parameters


def check_finite(content: bytes | bytearray | memoryview, tensor: Stored) -> None:
    """Raises ValueError if one of the scales in `content` is infinite or not a number.

    Args:
        content: Whole elements of the tensor.
        tensor: One that holds scales or biases.
    """
    if first_not_finite(content, tensor.dtype) is not None:
        raise ValueError(f"tensor {tensor.name} holds a scale that is not a finite number")
