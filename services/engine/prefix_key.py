"""Names of pages: two are equal only where keys and values are, bit for bit. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from services.common.kv import BLOCK_TOKENS

PAGE_TOKENS: Final = BLOCK_TOKENS
_PAGE_BYTES: Final = PAGE_TOKENS * 4


class Origin(NamedTuple):
    """What computes keys and values: where any of these differs, so do they for the same tokens.

    Attributes:
        artifact_id: Of the weights.
        graph_root: Of the model as it was built here, all five parts.
        dtype: Of keys and values.
    """

    artifact_id: str
    graph_root: str
    dtype: str


class Sharers(NamedTuple):
    """Who may share pages: the requests of one tenant, as far as they give the same salt."""

    tenant: str
    salt: bytes


def root(origin: Origin, sharers: Sharers) -> bytes:
    """The name that chains begin with.

    Args:
        origin: What computes.
        sharers: Who may share.
    """
    return _digest(
        (b"A", origin.artifact_id.encode()),
        (b"G", origin.graph_root.encode()),
        (b"D", origin.dtype.encode()),
        (b"C", sharers.tenant.encode()),
        (b"S", sharers.salt),
    )


def chain(parent: bytes, tokens: npt.ArrayLike) -> Iterator[bytes]:
    """The name of every whole page of `tokens`, each over all that lies before it.

    Args:
        parent: The name of the page before, or the root.
        tokens: Ids, [n]; what is left of them beyond the last whole page has no name.
    """
    ids = np.asarray(tokens, "<u4").tobytes()
    for start in range(0, len(ids) - _PAGE_BYTES + 1, _PAGE_BYTES):
        parent = _digest((b"P", parent), (b"T", ids[start : start + _PAGE_BYTES]))
        yield parent


def _digest(*fields: tuple[bytes, bytes]) -> bytes:
    """Every field under its tag and with its length, so that no field's bytes can be read as another's."""
    return blake3(b"".join(tag + struct.pack("<I", len(value)) + value for tag, value in fields)).digest()
