"""What a conversion may be asked for, shared by the command line and the converter."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from services.common.checkpoint.dtype import DType
from services.common.errors import InvalidRequest

MAX_TENSOR_PARALLEL_SIZE: Final = 256


class QuantPolicy(enum.StrEnum):
    """What the weights are stored in."""

    KEEP = "keep"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def dtype(self) -> DType | None:
        """The one dtype of the stored weights; None: that of the source."""
        return None if self is QuantPolicy.KEEP else DType(self.value)


class Validation(enum.StrEnum):
    """How much of the result is compared with the source before it gets its name."""

    NONE = "none"
    SAMPLE = "sample"
    FULL = "full"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """How to convert.

    Attributes:
        quant_policy: The dtype of the stored weights. `keep` refuses a quantised source, because no engine
            computes with its blocks; the others dequantise it and say by how much it grows.
        drop_optimizer_state: Whether training state in the source is left out and named; it is refused
            otherwise, because an artifact has no place for it.
        tensor_parallel_size: Ranks among which every tensor must be divisible.
        validation: What is compared with the source.

    Raises:
        InvalidRequest: A number is out of its bounds.
    """

    quant_policy: QuantPolicy = QuantPolicy.KEEP
    drop_optimizer_state: bool = True
    tensor_parallel_size: int = 1
    validation: Validation = Validation.NONE

    def __post_init__(self) -> None:
        if not 1 <= self.tensor_parallel_size <= MAX_TENSOR_PARALLEL_SIZE:
            raise InvalidRequest(
                f"a tensor-parallel size of {self.tensor_parallel_size}; give 1 to {MAX_TENSOR_PARALLEL_SIZE}"
            )

    def arguments(self) -> tuple[str, ...]:
        """The converter's command-line arguments that ask for this."""
        return (
            f"--quant-policy={self.quant_policy}",
            "--drop-optimizer-state" if self.drop_optimizer_state else "--no-drop-optimizer-state",
            f"--tensor-parallel-size={self.tensor_parallel_size}",
            f"--validate={self.validation}",
        )


DEFAULTS: Final = ConversionOptions()
