"""Attention alone, by every set of kernels, on blocks of its own: what the tests of its numbers compare."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence as Ordered
from typing import Literal

import numpy as np
import torch

from services.common.kv import BLOCK_TOKENS
from services.engine.kernels.cpu.library import InstructionSet, Model
from services.engine.kernels.cpu.native_llama import _KV_KINDS, _step
from services.engine.kernels.cpu.team import Team
from services.engine.kernels.portable import PortableOperations
from services.engine.kv_format import KvFormat
from services.engine.model.rotary import Rotary
from services.engine.ragged import Ragged

KernelName = Literal["portable"] | InstructionSet


class Attending:
    """Sequences that one layer attends to, their blocks in a scattered order and full of NaN until they are written.

    Args:
        kernels: The set's name.
        kv: One layer's.
        heads: Query heads.
        rotary: By position.
        lengths: Of each sequence, at most.
        dtype: Of what comes out.
    """

    def __init__(
        self,
        kernels: KernelName,
        kv: KvFormat,
        heads: int,
        rotary: Rotary,
        lengths: Ordered[int],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._kernels, self._kv, self._heads, self._rotary, self._dtype = kernels, kv, heads, rotary, dtype
        counts = [-(-length // BLOCK_TOKENS) for length in lengths]
        order = np.random.default_rng(3).permutation(sum(counts)).astype(np.int32)
        self._tables = np.split(order, np.cumsum(counts)[:-1])
        self._blocks = torch.full((sum(counts), kv.block_bytes), 0xFF, dtype=torch.uint8)
        self._computed = [0] * len(lengths)
        self._team = None if kernels == "portable" else Team(kernels, 2)

    def run(self, qkv: Ordered[torch.Tensor], steps: Ordered[Ordered[int]]) -> list[torch.Tensor]:
        """Attends to whole sequences, step by step.

        Args:
            qkv: Of each sequence, [length, (heads + 2 * kv_heads) * head_dim], float32.
            steps: How many tokens more of each sequence are in each step.

        Returns:
            Of each sequence, [tokens in all steps, heads * head_dim].
        """
        mixed: list[list[torch.Tensor]] = [[] for _ in qkv]
        for shares in steps:
            whole = torch.cat([x[at : at + n] for x, at, n in zip(qkv, self._computed, shares, strict=True)])
            out = self._attend(self._ragged(shares), whole).split(list(shares))
            for kept, part in zip(mixed, out, strict=True):
                kept.append(part)
            self._computed = [at + n for at, n in zip(self._computed, shares, strict=True)]
        return [torch.cat(parts) for parts in mixed]

    def _ragged(self, shares: Ordered[int]) -> Ragged:
        present = [i for i, tokens in enumerate(shares) if tokens]
        rows = np.cumsum([0, *(shares[i] for i in present)]).astype(np.int32)
        tables = np.zeros((len(present), max(len(self._tables[i]) for i in present)), np.int32)
        for row, i in zip(tables, present, strict=True):
            row[: len(self._tables[i])] = self._tables[i]
        positions = [
            np.arange(self._computed[i], self._computed[i] + shares[i], dtype=np.int32) for i in present
        ]
        return Ragged(
            token_ids=np.zeros(rows[-1], np.int32),
            positions=np.concatenate(positions),
            rows=rows,
            tables=tables,
            sample_rows=rows[1:] - 1,
        )

    def _attend(self, step: Ragged, qkv: torch.Tensor) -> torch.Tensor:
        if self._team is not None:
            return self._natively(self._team, step, qkv)
        attention = PortableOperations().attention(
            step, self._blocks, self._kv, self._rotary, self._heads, dtype=self._dtype
        )
        return attention(0, qkv)[: len(qkv)]

    def _natively(self, team: Team, step: Ragged, qkv: torch.Tensor) -> torch.Tensor:
        kv, rotary = self._kv, self._rotary
        model = Model(
            cos=rotary.cos.data_ptr(),
            sin=rotary.sin.data_ptr(),
            layer_count=1,
            heads=self._heads,
            kv_heads=kv.kv_heads,
            head_dim=kv.head_dim,
            is_bf16=self._dtype is torch.bfloat16,
            kv_kind=_KV_KINDS[kv.dtype],
            kv_head_bytes=kv.head_bytes,
        )
        arguments = team.address, ctypes.byref(model), ctypes.byref(_step(step, self._blocks))
        scratch = torch.empty(team.library.halogen_scratch_bytes(*arguments), dtype=torch.uint8)
        mixed = torch.full((len(qkv), self._heads * kv.head_dim), torch.nan, dtype=self._dtype)
        team.library.halogen_attend(*arguments, qkv.data_ptr(), mixed.data_ptr(), scratch.data_ptr())
        return mixed


def attended(qkv: torch.Tensor, heads: int, kv_heads: int, rotary: Rotary) -> torch.Tensor:
    """The same of one sequence, in float64 and with nothing rounded."""
    length = len(qkv)
    q, k, v = (
        qkv.double().view(length, heads + 2 * kv_heads, -1).tensor_split((heads, heads + kv_heads), dim=1)
    )
    q, k = _turned(q, rotary), _turned(k, rotary)
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
    scores.masked_fill_(torch.ones(length, length, dtype=torch.bool).triu(1), -math.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, -1)


def _turned(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    cos, sin = (table[: len(x), None].double() for table in rotary)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
