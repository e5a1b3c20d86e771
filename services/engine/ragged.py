"""The tokens of one step, of many sequences, end to end: what a model computes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Ordered

import numpy as np
import numpy.typing as npt

from services.engine.batcher import Share

Int32s = npt.NDArray[np.int32]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """n tokens of s sequences, each sequence's together and in order.

    Attributes:
        token_ids: [n].
        positions: [n], of each token in its sequence.
        rows: [s + 1]; sequence i owns tokens rows[i] .. rows[i + 1] - 1.
        tables: [s, most blocks]; ids of the blocks that hold each sequence's keys and values, padded with 0.
        sample_rows: Tokens whose logits are wanted, in order of their sequences.
    """

    token_ids: Int32s
    positions: Int32s
    rows: Int32s
    tables: Int32s
    sample_rows: Int32s

    @classmethod
    def of(cls, shares: Ordered[Share]) -> Ragged:
        """Lays out `shares`, whose blocks have been taken (`Sequence.cover`)."""
        rows = np.zeros(len(shares) + 1, np.int32)
        np.cumsum([share.tokens for share in shares], out=rows[1:])
        due = [s.is_due for s in shares]
        return cls(
            token_ids=np.concatenate([s.sequence.pending(s.tokens) for s in shares]),
            positions=np.concatenate(
                [
                    np.arange(s.sequence.computed, s.sequence.computed + s.tokens, dtype=np.int32)
                    for s in shares
                ]
            ),
            rows=rows,
            tables=_padded([s.sequence.table for s in shares]),
            sample_rows=rows[1:][due] - 1,
        )


def _padded(tables: list[Int32s]) -> Int32s:
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
