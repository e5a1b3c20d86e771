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
        """Lays out `shares`, whose blocks have been taken (`Sequence.cover`).

        Most are single tokens of decodes: lists of numbers take a fifth of the time of an array for each.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        rows, sample_rows = [0], list[int]()
        for share in shares:
            sequence, tokens = share
            token_ids += sequence.pending(tokens).tolist()
            positions += range(sequence.computed, sequence.computed + tokens)
            rows.append(len(token_ids))
            if share.is_due:
                sample_rows.append(len(token_ids) - 1)
        return cls(
            token_ids=np.array(token_ids, np.int32),
            positions=np.array(positions, np.int32),
            rows=np.array(rows, np.int32),
            tables=_padded([share.sequence.table for share in shares]),
            sample_rows=np.array(sample_rows, np.int32),
        )


def _padded(tables: list[Int32s]) -> Int32s:
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
