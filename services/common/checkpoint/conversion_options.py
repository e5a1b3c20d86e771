"""What a conversion may be asked for, shared by the command line and the converter."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Final

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import MAX_DIVISION
from services.common.checkpoint.layout import UNDIVIDED, Storage
from services.common.checkpoint.requirements import ANY_DEVICE, ANYWHERE, Hosts
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

    @property
    def command(self) -> str:
        """What does it, for messages: not everybody who converts can be given a policy."""
        return f"halogen convert --quant-policy {self} SRC DST"


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
        runtime: Which versions of halogen may serve it, as PEP 440's specifiers; None: as the source says if
            that is an artifact, else this one and later.
        device_classes: On which classes of device; none: on any; None: as the source says.

    Raises:
        InvalidRequest: A number is out of its bounds, or a requirement is ill-formed.
    """

    quant_policy: QuantPolicy = QuantPolicy.KEEP
    drop_optimizer_state: bool = True
    storage: Storage = UNDIVIDED
    validation: Validation = Validation.NONE
    runtime: str | None = None
    device_classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.hosts(ANYWHERE)
        for name, value in self.storage._asdict().items():
            if not 1 <= value <= MAX_DIVISION:
                raise InvalidRequest(f"{name} is {value}; give 1 to {MAX_DIVISION}")

    def hosts(self, of_source: Hosts) -> Hosts:
        """Where the result may be served, given where its source may be."""
        runtime = of_source.runtime if self.runtime is None else self.runtime
        classes = of_source.device_classes if self.device_classes is None else self.device_classes
        return Hosts.parse(runtime, classes)

    def arguments(self) -> tuple[str, ...]:
        """The converter's command-line arguments that ask for this."""
        classes = [ANY_DEVICE] if self.device_classes == () else self.device_classes or ()
        return (
            *(() if self.runtime is None else (f"--require-runtime={self.runtime}",)),
            *(f"--require-device-class={each}" for each in classes),
            f"--quant-policy={self.quant_policy}",
            "--drop-optimizer-state" if self.drop_optimizer_state else "--no-drop-optimizer-state",
            f"--block-size={self.storage.block_rows}",
            f"--tensor-parallel-size={self.storage.tensor_parallel_size}",
            f"--validate={self.validation}",
        )


DEFAULTS: Final = ConversionOptions()


def narrowed(device_classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """What a command line says of device classes: nothing, any, or these."""
    if not device_classes:
        return None
    return tuple(each for each in device_classes if each != ANY_DEVICE)
