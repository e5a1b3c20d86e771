"""Digests: blake3 for every 4 MiB block of tensor data, sha256 for identities."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from blake3 import blake3

BLOCK_BYTES: Final = 4 << 20
DIGEST_BYTES: Final = 32

Buffer = bytes | bytearray | memoryview


def block_digest(block: Buffer) -> bytes:
    """blake3 of one block; lets other threads run meanwhile."""
    return blake3(block).digest()


def sha256_hex(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


def block_count(data_bytes: int) -> int:
    return -(-data_bytes // BLOCK_BYTES)


def split_blocks(data_bytes: int) -> Iterator[tuple[int, int]]:
    """The blocks' (begin, end), counted from the start of the data."""
    for begin in range(0, data_bytes, BLOCK_BYTES):
        yield begin, min(begin + BLOCK_BYTES, data_bytes)


class BlockDigester:
    """Digests a stream block by block, whatever pieces it comes in."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._hasher = blake3()
        self._filled_bytes = 0

    def update(self, piece: Buffer) -> None:
        view = memoryview(piece)
        while view:
            part = view[: BLOCK_BYTES - self._filled_bytes]
            self._hasher.update(part)
            self._filled_bytes += len(part)
            view = view[len(part) :]
            if self._filled_bytes == BLOCK_BYTES:
                self._close_block()

    def finish(self) -> tuple[bytes, ...]:
        if self._filled_bytes:
            self._close_block()
        return tuple(self._digests)

    def _close_block(self) -> None:
        self._digests.append(self._hasher.digest())
        self._hasher, self._filled_bytes = blake3(), 0
