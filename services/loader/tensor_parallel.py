"""Whether a decoder can be divided among tensor-parallel ranks."""

from __future__ import annotations

from services.common.checkpoint.architecture import Architecture
from services.common.errors import InvalidRequest


def check_divisible(architecture: Architecture, ranks: int) -> None:
    """Every rank gets whole attention heads and equally many rows.

    Raises:
        InvalidRequest: A count is not a multiple of `ranks`; the message names it and what would do.
    """
    counts = {
        name: getattr(architecture, name)
        for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
    }
    for name, count in counts.items():
        if count % ranks:
            fitting = [size for size in range(1, ranks) if all(each % size == 0 for each in counts.values())]
            raise InvalidRequest(
                f"{name} is {count}, which {ranks} tensor-parallel ranks cannot share; "
                f"--tensor-parallel-size may be up to {ranks}: {', '.join(map(str, fitting))}",
                reason="TENSOR_PARALLEL_SIZE",
            )
