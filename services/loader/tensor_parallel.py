"""Whether a decoder can be divided among tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.layout import Storage, TensorSpec, plan
from services.common.checkpoint.shard_plan import check_divisible
from services.common.errors import InvalidRequest


def check_shares(architecture: Architecture, specs: Iterable[TensorSpec], storage: Storage) -> None:
    """Every rank gets whole attention heads, and of every tensor equally many blocks of rows.

    Raises:
        InvalidRequest: It cannot be; the message names what is in the way, and what would do.
    """
    _check_counts(architecture, storage.tensor_parallel_size)
    try:
        check_divisible(plan(specs, 0).entries, storage)
    except ValueError as fault:
        raise InvalidRequest(
            f"{fault}; give a --block-size that divides the ranks' rows", reason="BLOCK_SIZE"
        ) from None


def _check_counts(architecture: Architecture, ranks: int) -> None:
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
