"""Kernels in plain torch, for every CPU and every floating type; exact about order by fixed shapes.

A matrix product in torch gives each row the same bits only while its shape keeps to one path of the library
below. So rows are padded to whole tiles, and attention multiplies tiles of one fixed shape: 16 queries times
the heads of one key-value head, against 128 keys that begin at a multiple of 128.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from services.common.checkpoint.architecture import Architecture
from services.common.kv import BLOCK_TOKENS
from services.engine.kernels.portable_cache import CachedLayer, PortableCache
from services.engine.kv_format import KvFormat
from services.engine.model.llama import Llama
from services.engine.model.llama_weights import LlamaWeights
from services.engine.model.rotary import Rotary
from services.engine.ragged import Ragged

_ROWS: Final = 16  # a multiple of this many rows always takes the same path of F.linear
_REFINED: Final = 64  # logits of a row that are computed without rounding
_QUERIES: Final = 16
_TILE_BLOCKS: Final = 8
_KEYS: Final = _TILE_BLOCKS * BLOCK_TOKENS


class PortableKernels:
    """See `Kernels`."""

    name = "portable"
    layout = None

    def decoder(
        self, architecture: Architecture, weights: LlamaWeights, kv: KvFormat, max_positions: int
    ) -> Llama:
        return Llama(architecture, weights, kv, PortableOperations(), max_positions)


class PortableOperations:
    """See `Operations`."""

    def attention(
        self,
        step: Ragged,
        blocks: torch.Tensor,
        kv: KvFormat,
        rotary: Rotary,
        heads: int,
        *,
        dtype: torch.dtype,
    ) -> TiledAttention:
        return TiledAttention(step, PortableCache(blocks, kv), rotary, heads, dtype)

    def embed(self, table: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        return _pad(functional.embedding(token_ids, table).float())

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        return (x * scale * weight.float()).to(weight.dtype)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        product = functional.linear(_pad(x), weight)[: len(x)].float()
        return product if bias is None else product + bias.float()

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """In bfloat16 the product is rounded to 8 bits, so coarsely that the best of a row can tie with others.

        The best few, of which an answer is made, are computed again from the same operands in float32.
        """
        rounded = self.linear(x, weight)
        if weight.dtype is torch.float32:
            return rounded
        best = rounded.topk(min(_REFINED, len(weight))).indices
        exact = (weight[best].float() * x[:, None].float()).sum(-1)
        return rounded.scatter_(1, best, exact)

    def add_linear(self, residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        residual += self.linear(x, weight)

    def gated_silu(self, gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(dtype)


class TiledAttention:
    """Online softmax (Milakov and Gimelshein 2018) over absolute tiles of keys."""

    def __init__(
        self, step: Ragged, cache: PortableCache, rotary: Rotary, heads: int, dtype: torch.dtype
    ) -> None:
        self._cache, self._dtype = cache, dtype
        self._heads, self._kv_heads, self._head_dim = heads, cache.kv.kv_heads, cache.kv.head_dim
        self._positions = torch.from_numpy(step.positions)
        self._cos = rotary.cos[self._positions][:, None]
        self._sin = rotary.sin[self._positions][:, None]
        self._tiles = _Tiles(step)
        self._write_blocks, self._write_slots = _written(step)

    def __call__(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        count, size = len(self._positions), self._head_dim
        heads = qkv[:count].view(count, -1, size)
        q, k, v = heads.tensor_split((self._heads, self._heads + self._kv_heads), dim=1)
        cache = self._cache.layer(layer)
        cache.store(self._write_blocks, self._write_slots, self._turn(k), v)
        mixed = self._attend(cache, self._turn(q))
        return _pad(mixed.reshape(count, -1).to(self._dtype))

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * self._cos - high * self._sin, high * self._cos + low * self._sin), dim=-1)

    def _attend(self, cache: CachedLayer, q: torch.Tensor) -> torch.Tensor:
        """Attention of q [tokens, heads, head_dim]: the same shape, float32."""
        tiles, kv_heads, size = self._tiles, self._kv_heads, self._head_dim
        group = self._heads // kv_heads
        rows = (q * (1 / math.sqrt(size)))[tiles.tokens]  # [tiles, 16, heads, size]
        rows = rows.view(-1, _QUERIES, kv_heads, group, size).permute(0, 2, 1, 3, 4)
        rows = _pad_heads(rows.reshape(-1, kv_heads, _QUERIES * group, size))
        mixed = _online_softmax(tiles, cache, rows)[..., :size]
        mixed = mixed.reshape(-1, kv_heads, _QUERIES, group, size).permute(0, 2, 1, 3, 4)
        return mixed.reshape(-1, self._heads, size)[tiles.rows_of_tokens]


class _Tiles:
    """The step's queries in tiles of 16, those with the longest past first.

    Attributes:
        tokens: [tiles, 16] of int64, the step's token in each place; token 0 where there is none.
        positions: [tiles, 16], of those tokens.
        last: [tiles], the last position that each tile has stored keys for.
        tables: [tiles, blocks], padded to whole tiles of keys.
        rows_of_tokens: [tokens], where each token stands in the flattened tiles.
    """

    def __init__(self, step: Ragged) -> None:
        tiles = sorted(
            (
                (int(step.positions[min(first + _QUERIES, end) - 1]), first, min(first + _QUERIES, end), i)
                for i, (begin, end) in enumerate(zip(step.rows[:-1], step.rows[1:], strict=True))
                for first in range(begin, end, _QUERIES)
            ),
            reverse=True,
        )
        tokens = np.zeros((len(tiles), _QUERIES), np.int64)
        positions = np.zeros((len(tiles), _QUERIES), np.int64)
        places = np.empty(len(step.positions), np.int64)
        for tile, (_, first, end, _) in enumerate(tiles):
            tokens[tile, : end - first] = range(first, end)
            positions[tile, : end - first] = step.positions[first:end]
            places[first:end] = range(tile * _QUERIES, tile * _QUERIES + end - first)
        width = -step.tables.shape[1] % _TILE_BLOCKS
        tables = np.pad(step.tables, ((0, 0), (0, width)))[[i for *_, i in tiles]]
        self.tokens, self.positions = torch.from_numpy(tokens), torch.from_numpy(positions)
        self.last = torch.tensor([last for last, *_ in tiles])
        self.tables = torch.from_numpy(tables)
        self.rows_of_tokens = torch.from_numpy(places)


def _online_softmax(tiles: _Tiles, cache: CachedLayer, q: torch.Tensor) -> torch.Tensor:
    """Attention of q [tiles, kv_heads, rows, size], already scaled; rows are queries times heads of a group.

    A tile takes part only in the tiles of keys that it can see; what is masked within one adds exact zeros.
    """
    count, kv_heads, rows, _ = q.shape
    top = torch.full((count, kv_heads, rows, 1), -math.inf)
    mass = torch.zeros_like(top)
    mixed = torch.zeros_like(q)
    positions = tiles.positions.repeat_interleave(rows // _QUERIES, dim=1)
    for first in range(0, int(tiles.last[0]) + 1, _KEYS):
        active = int((tiles.last >= first).sum())
        keys, values = _gather(tiles, cache, first, active)
        hidden = torch.arange(first, first + _KEYS) > positions[:active, None, :, None]
        scores = _multiply(q[:active], keys.transpose(-1, -2)).masked_fill_(hidden, -math.inf)
        new_top = torch.maximum(top[:active], scores.amax(-1, keepdim=True))
        weights = (scores - new_top).exp_()
        fade = (top[:active] - new_top).exp_()
        mass[:active] = mass[:active] * fade + weights.sum(-1, keepdim=True)
        mixed[:active] = mixed[:active] * fade + _multiply(weights, values)
        top[:active] = new_top
    return mixed / mass


def _gather(tiles: _Tiles, cache: CachedLayer, first: int, active: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values first .. first + 127 of every active tile, each [active, kv_heads, 128, padded size], float32.

    What nobody has stored yet may hold anything, so it is set to zero: zero times NaN would be NaN.
    """
    block = first // BLOCK_TOKENS
    held = cache.gather(tiles.tables[:active, block : block + _TILE_BLOCKS])
    _, _, _, kv_heads, _, size = held.shape
    flat = held.permute(2, 0, 3, 1, 4, 5).reshape(2, active, kv_heads, _KEYS, size)
    unset = torch.arange(first, first + _KEYS) > tiles.last[:active, None]
    flat.masked_fill_(unset[None, :, None, :, None], 0)
    padded = _pad_heads(flat)
    return padded[0], padded[1]


def _multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A batch of products of one shape: [tiles, kv_heads, ...] each."""
    return torch.bmm(left.flatten(0, 1), right.flatten(0, 1)).view(*left.shape[:3], right.shape[-1])


def _written(step: Ragged) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and slot that each token's keys and values go to."""
    sequences = np.repeat(np.arange(len(step.rows) - 1), np.diff(step.rows))
    blocks = step.tables[sequences, step.positions // BLOCK_TOKENS]
    return torch.from_numpy(blocks).long(), torch.from_numpy(step.positions % BLOCK_TOKENS).long()


def _pad_heads(x: torch.Tensor) -> torch.Tensor:
    """`x` with heads of a multiple of 16 elements, on which no path of the library treats two rows unlike."""
    return functional.pad(x, (0, -x.shape[-1] % _ROWS))


def _pad(x: torch.Tensor) -> torch.Tensor:
    """`x` with rows of zeros up to a multiple of 16."""
    return functional.pad(x, (0, 0, 0, -len(x) % _ROWS))
