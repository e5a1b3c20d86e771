"""Whether a decoder can be divided among tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.layout import Shard, Storage, TensorSpec, plan
from services.common.checkpoint.shard_plan import check_divisible
from services.common.errors import InvalidRequest


def check_shares(architecture: Architecture, specs: Sequence[TensorSpec], storage: Storage) -> None:
    """Every rank, also one alone, gets whole attention heads, and of every tensor equally many blocks of rows.

    Raises:
        InvalidRequest: It cannot be; the message names what is in the way, and what would do.
    """
    _check_counts(architecture, storage.tensor_parallel_size)
    try:
        check_divisible(plan(specs, 0).entries, storage)
        _check_blocks(specs, storage.block_rows)
    except ValueError as fault:
        raise InvalidRequest(
            f"{fault}; give a --block-size that divides every rank's rows", reason="BLOCK_SIZE"
        ) from None


def _check_blocks(specs: Iterable[TensorSpec], block_rows: int) -> None:
    for spec in specs:
        if spec.shard is Shard.ROWS and spec.shape[0] % block_rows:
            raise ValueError(f"tensor {spec.name} has {spec.shape[0]} rows, not a multiple of {block_rows}")


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
