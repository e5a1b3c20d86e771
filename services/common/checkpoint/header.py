"""The header of a v2 weight file.

::

    0    8  magic 89 48 41 4c 4f 47 45 4e
    8    4  format version, 2
    12   4  revision of the format, 1
    16   8  length of the JSON in bytes
    24  32  sha256 of the JSON: the identity of the file, since the JSON holds a digest of every block
    56   8  zero
    64   …  canonical JSON: architecture, block_bytes, block_rows, data_bytes, data_offset, digests, graph,
            tensor_parallel_size, tensors
    …    …  zeros up to data_offset, the next multiple of 4 KiB
    data_offset  the tensors, data_bytes long; digests[i] is blake3 of its i-th block of block_bytes

Numbers are little-endian. docs/checkpoint-format.md has all of it. A torn, truncated or foreign file cannot pass for a header.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn

from services.common.checkpoint import canonical
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.derivation import Derivation
from services.common.checkpoint.digest import BLOCK_BYTES, DIGEST_BYTES, Buffer, block_count, sha256_hex
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.file_format import MAGIC, WEIGHTS_NAME, FileFormat, recognise
from services.common.checkpoint.graph_hash import GraphHash, architecture_digest, tensors_digest
from services.common.checkpoint.layout import (
    ALIGNMENT,
    UNDIVIDED,
    Layout,
    Storage,
    TensorEntry,
    TensorSpec,
    align,
    plan,
)
from services.common.checkpoint.shard_plan import check_divisible
from services.common.checkpoint.tensor_table import check_table, decode_entry, encode_entry
from services.common.errors import CorruptData, InvalidRequest

VERSION: Final = 2
REVISION: Final = 1
PREAMBLE: Final = struct.Struct("<8sIIQ32s8x")
MAX_JSON_BYTES: Final = 64 << 20
MAX_DIVISION: Final = 1 << 20  # of block_rows and tensor_parallel_size

_REMEDY: Final = "fetch or convert the artifact again"


def corrupt(region: str, what: object) -> CorruptData:
    return CorruptData(
        f"{WEIGHTS_NAME}, {region}: {what}; {_REMEDY}", metadata={"file": WEIGHTS_NAME, "region": region}
    )


@dataclasses.dataclass(frozen=True)
class Header:
    """What a weight file holds and where.

    Attributes:
        layout: The tensors by rising offset, and the extent of the data.
        digests: blake3 of every block of the data, 32 bytes each.
        architecture: The decoder that the tensors make.
        graph: The graph hash as the file's writer computed it.
        storage: How the tensors are meant to be divided.
        derived: What it was made of; None for an artifact's own file.
    """

    layout: Layout
    digests: tuple[bytes, ...]
    architecture: Architecture
    graph: GraphHash
    storage: Storage
    derived: Derivation | None = None

    @functools.cached_property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """The entries by name; offsets count from the start of the file."""
        return MappingProxyType({entry.name: entry for entry in self.layout.entries})

    @property
    def precisions(self) -> tuple[str, ...]:
        """The dtypes of the tensors, sorted."""
        return tuple(sorted({entry.dtype.value for entry in self.layout.entries}))

    @property
    def data_offset(self) -> int:
        return self.layout.data_offset

    @property
    def data_bytes(self) -> int:
        return self.layout.data_bytes

    @property
    def file_bytes(self) -> int:
        return self.data_offset + self.data_bytes

    def block_extent(self, index: int) -> tuple[int, int]:
        """Where a digest block begins and ends in the file."""
        begin = self.data_offset + index * BLOCK_BYTES
        return begin, min(begin + BLOCK_BYTES, self.file_bytes)

    def tensors_in_block(self, index: int) -> tuple[TensorEntry, ...]:
        """The tensors of which some bytes are in a digest block, in their order."""
        begin, end = self.block_extent(index)
        return tuple(each for each in self.layout.entries if each.offset < end and each.end > begin)

    def block_mismatch(self, index: int, what: str) -> CorruptData:
        """The error for a block that is not what its digest says: names file, block, tensors and remedy."""
        names = [entry.name for entry in self.tensors_in_block(index)]
        held = f" (in it: {' to '.join(dict.fromkeys((names[0], names[-1])))})" if names else ""
        return CorruptData(
            f"{WEIGHTS_NAME}: block {index} of {len(self.digests)} {what}{held}; {_REMEDY}",
            metadata={"file": WEIGHTS_NAME, "region": "data", "block": str(index)},
        )

    @property
    def model_graph(self) -> GraphHash:
        """Of the model that it is: its own, or that of the file that it was made of."""
        return self.derived.graph if self.derived else self.graph

    @functools.cached_property
    def identity(self) -> str:
        """Hex sha256 of the header's JSON: two files with one identity hold the same bytes."""
        return sha256_hex(self._json())

    @classmethod
    def lay_out(
        cls,
        specs: Iterable[TensorSpec],
        architecture: Architecture,
        storage: Storage = UNDIVIDED,
        derived: Derivation | None = None,
    ) -> Header:
        """The header of a file yet to be written, its digests still zero.

        The length of the JSON depends on the offsets in it and these on that length: both only grow, so
        repeating finds the least pair that fits.

        Raises:
            ValueError: No reader would trust such a file: a name is there twice, scales are missing, a tensor
                cannot be divided as `storage` says.
        """
        specs, data_offset = tuple(specs), 0
        graph = GraphHash.of(architecture, plan(specs, 0).entries, storage)
        while True:
            layout = plan(specs, data_offset)
            digests = (bytes(DIGEST_BYTES),) * block_count(layout.data_bytes)
            header = cls(layout, digests, architecture, graph, storage, derived)
            needed = align(PREAMBLE.size + len(header._json()), ALIGNMENT)
            if needed == data_offset:
                check_table(layout)
                check_divisible(layout.entries, storage)
                return header
            data_offset = needed

    def with_digests(self, digests: tuple[bytes, ...]) -> Header:
        assert len(digests) == len(self.digests)
        return dataclasses.replace(self, digests=digests)

    def encode(self) -> bytes:
        """The file's bytes before the data, padding included."""
        text = self._json()
        preamble = PREAMBLE.pack(MAGIC, VERSION, REVISION, len(text), bytes.fromhex(sha256_hex(text)))
        return (preamble + text).ljust(self.data_offset, b"\0")

    @classmethod
    def decode(cls, buffer: Buffer) -> Header:
        """Reads and checks a header.

        Args:
            buffer: The file, or as much of its start as `header_bytes` says.

        Raises:
            InvalidRequest: It is another format or version.
            CorruptData: It is a v2 file, but truncated, torn or ill-formed.
        """
        view = memoryview(buffer)
        extent = header_bytes(view)
        if len(view) < extent:
            raise corrupt("header", f"the file ends after {len(view)} of the header's {extent} bytes")
        *_, length, digest = PREAMBLE.unpack_from(view)
        text = bytes(view[PREAMBLE.size : PREAMBLE.size + length])
        if sha256_hex(text) != digest.hex():
            raise corrupt("header", "its bytes do not match its sha256")
        if any(view[PREAMBLE.size + length : extent]):
            raise corrupt("header padding", "not zero")
        try:
            return cls._from_fields(canonical.decode(text), extent)
        except ValueError as fault:
            raise corrupt("header", fault) from None

    @classmethod
    def _from_fields(cls, value: Any, extent: int) -> Header:
        fields = Fields(value, "header")
        fields.take_count("block_bytes", BLOCK_BYTES, BLOCK_BYTES)
        storage = Storage(*(fields.take_count(name, 1, MAX_DIVISION) for name in Storage._fields))
        architecture = Architecture.from_fields(fields.take("architecture", dict))
        graph = GraphHash.from_fields(fields.take("graph", dict))
        data_offset = fields.take_count("data_offset", extent, extent)
        data_bytes = fields.take_count("data_bytes")
        digests = tuple(_decode_digest(text) for text in fields.take("digests", list))
        if len(digests) != block_count(data_bytes):
            raise ValueError(f"{len(digests)} digests for {block_count(data_bytes)} blocks")
        entries = tuple(
            decode_entry(entry, f"tensor {i}") for i, entry in enumerate(fields.take("tensors", list))
        )
        derived = Derivation.from_fields(fields.take("derived", dict)) if fields.has("derived") else None
        fields.finish()
        layout = Layout(entries, data_offset, data_bytes)
        check_table(layout)
        check_divisible(entries, storage)
        _check_graph(graph, architecture_digest(architecture), tensors_digest(entries, storage))
        return cls(layout, digests, architecture, graph, storage, derived)

    def _json(self) -> bytes:
        return canonical.encode(
            {
                **self.storage._asdict(),
                "architecture": self.architecture.to_fields(),
                "block_bytes": BLOCK_BYTES,
                "data_bytes": self.data_bytes,
                "data_offset": self.data_offset,
                "digests": [digest.hex() for digest in self.digests],
                "graph": self.graph.to_fields(),
                "tensors": [encode_entry(entry) for entry in self.layout.entries],
                **({"derived": self.derived.to_fields()} if self.derived else {}),
            }
        )


def header_bytes(start: Buffer) -> int:
    """How many bytes of the file `Header.decode` needs: all before the data.

    Args:
        start: The file's first PREAMBLE.size bytes, or more.

    Raises:
        InvalidRequest: It is another format or version.
        CorruptData: It ends inside the preamble, or the preamble is ill-formed.
    """
    file_format = recognise(bytes(start[: PREAMBLE.size]))
    if file_format is not FileFormat.V2:
        _refuse(file_format, len(start))
    if len(start) < PREAMBLE.size:
        raise corrupt("preamble", f"the file ends after {len(start)} bytes")
    _, version, revision, length, digest = PREAMBLE.unpack_from(start)
    if (version, revision) != (VERSION, REVISION):
        raise InvalidRequest(
            f"{WEIGHTS_NAME} is of format version {version}.{revision}; this build reads version "
            f"{VERSION}.{REVISION}: convert the original checkpoint with this build's `halogen convert`",
            reason="FORMAT_VERSION",
        )
    if PREAMBLE.pack(MAGIC, version, revision, length, digest) != bytes(start[: PREAMBLE.size]):
        raise corrupt("preamble", "reserved bytes are not zero")
    if length > MAX_JSON_BYTES:
        raise corrupt("preamble", f"it claims a header of {length} bytes; the most is {MAX_JSON_BYTES}")
    return align(PREAMBLE.size + length, ALIGNMENT)


def _refuse(file_format: FileFormat, length: int) -> NoReturn:
    if length == 0:
        raise corrupt("preamble", "the file is empty")
    if file_format is FileFormat.UNKNOWN:
        raise corrupt("preamble", "not a weight file: its first bytes are not the format's")
    raise InvalidRequest(
        f"a {file_format} file where a halogen v2 file is expected; convert it: halogen convert SRC OUT",
        reason="WRONG_FORMAT",
    )


def _check_graph(graph: GraphHash, architecture: str, tensors: str) -> None:
    """The topology is left to whoever computes: another build may declare the same model otherwise."""
    if graph.architecture != architecture:
        raise ValueError("the graph's part architecture is not that of the architecture here")
    if graph.tensors != tensors:
        raise ValueError("the graph's part tensors is not that of the table here")


def _decode_digest(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) != 2 * DIGEST_BYTES or text != text.lower():
        raise ValueError(f"a digest is not {2 * DIGEST_BYTES} hexadecimal digits")
    return bytes.fromhex(text)
