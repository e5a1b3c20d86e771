"""The weight file that is derived for a kernel: its header, and where everything of the artifact's own file goes in it."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_tensors import decoder_tensors
from services.common.checkpoint.derivation import Derivation
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import PACKED32, KernelLayout
from services.common.checkpoint.layout import TensorEntry
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.pack import GATE, UP, WHOLE, PanelPlace, put
from services.common.checkpoint.packed_tensors import Making, PackedTensor, packed_tensors
from services.common.errors import Unsupported


class Move(NamedTuple):
    """What of the whole file goes into one tensor of the derived one.

    Attributes:
        entry: Of the whole file.
        target: Of the derived one.
        place: Of the entry's rows among the target's panels; None where it is copied as it is.
    """

    entry: TensorEntry
    target: TensorEntry
    place: PanelPlace | None

    def put(self, window: memoryview, begin: int, memory: memoryview) -> None:
        """Puts what of it is in the window, whose first byte is at `begin` of the whole file, into the derived one."""
        first = max(begin, self.entry.offset)
        last = min(begin + len(window), self.entry.end)
        run = np.frombuffer(window[first - begin : last - begin], np.uint16)
        start = (first - self.entry.offset) // run.itemsize
        target = np.frombuffer(memory[self.target.offset : self.target.end], np.uint16)
        if self.place is None:
            target[start : start + len(run)] = run
        else:
            put(target.reshape(self.target.shape), run, start, self.entry.shape[1], self.place)


@dataclasses.dataclass(frozen=True, slots=True)
class PackedFile:
    """What a derived file is made of.

    Attributes:
        header: Its own; the digests are zero as yet.
        moves: In the order of the whole file's tensors.
    """

    header: Header
    moves: tuple[Move, ...]

    @classmethod
    def plan(cls, whole: Header) -> PackedFile:
        """Plans the file in PACKED32.

        Raises:
            Unsupported: These weights have no such layout.
        """
        check_packable(whole.architecture)
        _check_tensors(whole)
        tensors = packed_tensors(whole.architecture)
        header = derived_header(whole.architecture, Derivation(whole.identity, PACKED32, whole.graph))
        moves = [
            Move(whole.tensors[name], target, place)
            for tensor, target in zip(tensors, header.layout.entries, strict=True)
            for name, place in zip(tensor.sources, _places(tensor, whole), strict=True)
        ]
        return cls(header, tuple(sorted(moves, key=lambda move: move.entry.offset)))

    def moves_of(self, begin: int, end: int) -> Iterator[Move]:
        """Those of which something lies from `begin` up to `end` in the whole file."""
        first = bisect.bisect_right(self.moves, begin, key=lambda move: move.entry.end)
        last = bisect.bisect_left(self.moves, end, key=lambda move: move.entry.offset)
        yield from self.moves[first:last]


def derived_header(architecture: Architecture, derived: Derivation) -> Header:
    """The header that a derived file of that origin has, but for its digests."""
    specs = [tensor.spec for tensor in packed_tensors(architecture)]
    return Header.lay_out(specs, architecture, derived=derived)


def expected_header(manifest: Manifest, layout: KernelLayout) -> Header:
    """The same, told from an artifact's manifest; raises Unsupported where the weights have no such layout."""
    if layout != PACKED32:
        raise Unsupported(f"this build does not derive the layout {layout}", reason="LAYOUT_UNKNOWN")
    check_packable(manifest.architecture)
    return derived_header(
        manifest.architecture, Derivation(manifest.weights.sha256, layout, manifest.requires.graph)
    )


def is_packable(architecture: Architecture) -> bool:
    """Whether weights of such a model have the layout."""
    return architecture.dtype is DType.BF16


def check_packable(architecture: Architecture) -> None:
    """Raises Unsupported unless they have."""
    if not is_packable(architecture):
        raise Unsupported(
            f"weights of {architecture.dtype} are used as they are stored; only bf16 is packed",
            reason="LAYOUT_UNKNOWN",
        )


def _check_tensors(whole: Header) -> None:
    expected = {spec.name: (spec.dtype, spec.shape) for spec in decoder_tensors(whole.architecture)}
    if expected != {entry.name: (entry.dtype, entry.shape) for entry in whole.layout.entries}:
        raise Unsupported(
            "the tensors are not exactly those of the decoder that they are to make", reason="LAYOUT_UNKNOWN"
        )


def _places(tensor: PackedTensor, whole: Header) -> Iterator[PanelPlace | None]:
    if tensor.making is Making.AS_IT_IS:
        yield None
    elif tensor.making is Making.INTERLEAVED:
        yield from (GATE, UP)
    else:
        first_row = 0
        for name in tensor.sources:
            yield WHOLE._replace(first_row=first_row)
            first_row += whole.tensors[name].shape[0]
