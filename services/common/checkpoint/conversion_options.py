"""What a conversion may be asked for, shared by the command line and the converter."""

from __future__ import annotations

import dataclasses
import enum
from typing import Final

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import MAX_DIVISION
from services.common.checkpoint.layout import UNDIVIDED, Storage
from services.common.errors import InvalidRequest


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
        storage: Rows that stay together, and ranks among which every tensor must be divisible; recorded.
        validation: What is compared with the source.

    Raises:
        InvalidRequest: A number is out of its bounds.
    """

    quant_policy: QuantPolicy = QuantPolicy.KEEP
    drop_optimizer_state: bool = True
    storage: Storage = UNDIVIDED
    validation: Validation = Validation.NONE

    def __post_init__(self) -> None:
        for name, value in self.storage._asdict().items():
            if not 1 <= value <= MAX_DIVISION:
                raise InvalidRequest(f"{name} is {value}; give 1 to {MAX_DIVISION}")

    def arguments(self) -> tuple[str, ...]:
        """The converter's command-line arguments that ask for this."""
        return (
            f"--quant-policy={self.quant_policy}",
            "--drop-optimizer-state" if self.drop_optimizer_state else "--no-drop-optimizer-state",
            f"--block-size={self.storage.block_rows}",
            f"--tensor-parallel-size={self.storage.tensor_parallel_size}",
            f"--validate={self.validation}",
        )


DEFAULTS: Final = ConversionOptions()
