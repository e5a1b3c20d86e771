"""From an artifact that the loader has prepared to a model that computes steps."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.graph_hash import Built
from services.common.checkpoint.header import PREAMBLE, Header, header_bytes
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.packed_file import is_packable
from services.common.errors import CorruptData, Overloaded
from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, MemoryGuard
from services.common.rest import Rest
from services.common.telemetry.prealloc import tell_prealloc
from services.engine.arena import Arena
from services.engine.kernels.protocol import Decoder, Kernels
from services.engine.kv_format import KvChoice, KvFormat
from services.engine.load_memory import measured
from services.engine.mapping import map_file, populate
from services.engine.memory_need import MemoryNeed
from services.engine.model.graph_check import build_of, check_graph
from services.engine.model.weights import (
    DTypeChoice,
    bind,
    check_tensors,
    compute_dtype,
    copied_bytes,
    stored_dtype,
)
from services.engine.prefix_key import Origin
from services.engine.ragged import Ragged

log = structlog.get_logger(component="checkpoint")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedArtifact:
    """What a loader has made ready on this host.

    Attributes:
        weights: Where to map the weights.
        identity: Hex sha256 that their header must have.
        config: The bytes of config.json.
        lazy_bytes: How many, at the file's end, stay on the disk until they are used.
        layout: How matrices lie there; None: as they are stored.
    """

    artifact_id: ArtifactId
    weights: Path
    identity: str
    config: bytes
    lazy_bytes: int = 0
    layout: KernelLayout | None = None


class ModelOnArena:
    """A `generation.LoadedModel`."""

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        *,
        vocab_size: int,
        max_context_tokens: int,
        weights_bytes: int,
        artifact_id: ArtifactId,
        built: Built | None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_context_tokens = max_context_tokens
        self.weights_bytes = weights_bytes
        self.built = built
        self.origin = Origin(artifact_id, built.root if built else "", decoder.kv.dtype)
        self.block_bytes = decoder.kv.block_bytes
        self._decoder = decoder
        self._blocks = arena.blocks(self.block_bytes)

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        logits: npt.NDArray[np.float32] = self._decoder.forward(step, self._blocks).numpy()
        return logits

    def read_blocks(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        content: npt.NDArray[np.uint8] = self._blocks[torch.from_numpy(blocks).long()].numpy()
        return content

    def write_blocks(self, blocks: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        self._blocks[torch.from_numpy(blocks).long()] = torch.from_numpy(content)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoading:
    """How this engine loads models: the choices that are the same for all of them.

    Attributes:
        guard: Bounds what this engine takes: its arena, and copies of weights.
        shared: Bounds that together with the weights, which are the loader's where they are used in place.
        is_busy: Whether requests are under way, beside which loads hold back; asked by their threads.
        make_room: Has the arena give memory back that it can do without; takes milliseconds.
        swap_bytes: Tells what requests that are set back may yet take outside of the arena.
    """

    arena: Arena
    kernels: Kernels
    dtype: DTypeChoice
    max_model_len: int
    kv_dtype: KvChoice = "auto"
    guard: MemoryGuard = UNGUARDED
    shared: MemoryGuard = UNGUARDED
    is_busy: Callable[[], bool] = lambda: False
    make_room: Callable[[], None] = lambda: None
    swap_bytes: Callable[[], int] = lambda: 0

    @property
    def layout(self) -> KernelLayout | None:
        """How weights shall lie; what is computed in float32 is copied anyway."""
        return None if self.dtype == "float32" else self.kernels.layout

    def layout_of(self, manifest: Manifest) -> KernelLayout | None:
        """The same for an artifact, whose weights may have no such layout."""
        return self.layout if self.layout and is_packable(manifest.architecture) else None

    def guarded_by(self, ratio: float) -> ModelLoading:
        """The same, with another part of every bound that may be held."""
        guard, shared = (dataclasses.replace(each, ratio=ratio) for each in (self.guard, self.shared))
        return dataclasses.replace(self, guard=guard, shared=shared)

    @property
    def alone(self) -> ModelLoading:
        """The same, with nothing else in memory."""
        return dataclasses.replace(self, guard=self.guard.emptied, shared=self.shared.emptied)

    def check_memory(self, manifest: Manifest, *, is_nearby: bool) -> None:
        """Raises Overloaded, with the arithmetic, if an artifact would take more memory than there is.

        Args:
            manifest: The artifact's.
            is_nearby: Whether the loader needs no more memory for its weights.
        """
        self.held_against_guards(
            lambda untouched: MemoryNeed.foreseen(
                manifest, self.dtype, untouched, is_nearby=is_nearby, layout=self.layout_of(manifest)
            )
        )

    def held_against_guards(self, need: Callable[[int], MemoryNeed]) -> MemoryNeed:
        """What is needed, by what of the arena is untouched; if it is too much, after the arena has made room.

        What requests that are set back may take counts as well.

        Raises:
            Overloaded: It is too much all the same.
        """
        first = self._needed(need)
        with contextlib.suppress(Overloaded):
            first.check(self.guard, self.shared)
            return first
        self.make_room()
        second = self._needed(need)
        second.check(self.guard, self.shared)
        return second

    def _needed(self, need: Callable[[int], MemoryNeed]) -> MemoryNeed:
        return need(self.arena.untouched_bytes)._replace(swap_bytes=self.swap_bytes())

    def verify(self, prepared: PreparedArtifact) -> VerifiedWeights:
        """Maps the weights, and compares their header with what the loader verified and what the config asks for.

        Raises:
            CorruptData: The file is not the one that the loader verified, or its tensors do not fit its config.
            Unsupported: It is a model that this engine does not compute.
            Unavailable: The file is gone.
        """
        mapped = map_file(prepared.weights)
        header = _read_header(mapped)
        if header.identity != prepared.identity:
            raise CorruptData(
                "the mapped weights are not those that the loader verified; prepare them again",
                reason="IDENTITY_MISMATCH",
            )
        self._check_layout(header, prepared)
        architecture = Architecture.from_config(json.loads(prepared.config), stored_dtype(header))
        check_tensors(header, architecture, self.dtype)
        resident = mapped[: max(0, mapped.numel() - prepared.lazy_bytes)]
        return VerifiedWeights(self, prepared.artifact_id, mapped, resident, header, architecture)

    def _check_layout(self, header: Header, prepared: PreparedArtifact) -> None:
        """Raises CorruptData where matrices lie otherwise than was said, or than the kernels read."""
        found = header.derived.layout if header.derived else None
        if found != prepared.layout or found not in {None, self.layout}:
            raise CorruptData(
                f"the mapped weights lie as {found or 'they are stored'}, which is not what was asked for; prepare "
                "them again",
                reason="LAYOUT_MISMATCH",
            )

    def load(self, prepared: PreparedArtifact) -> ModelOnArena:
        """A model of what was prepared, without a pause; raises as `verify` and `VerifiedWeights.build` do."""
        return self.verify(prepared).build(threading.Event())


@dataclasses.dataclass(frozen=True, slots=True)
class VerifiedWeights:
    """Weights that are mapped and fit their config; of the memory that a model of them takes, none is taken yet."""

    _loading: ModelLoading
    _artifact_id: ArtifactId
    _mapped: torch.Tensor
    _resident: torch.Tensor  # the beginning that shall be resident
    _header: Header
    _architecture: Architecture

    def build(self, stop: threading.Event) -> ModelOnArena:
        """Makes the pages resident and the model; takes as long as that takes.

        Args:
            stop: Calls it off, soon.

        Raises:
            PreconditionFailed: What was built is not the model that the file describes.
            Unsupported: It is a model that this engine does not compute.
            Overloaded: Memory would be short.
            Cancelled: It was called off.
        """
        loading = self._loading
        copied = copied_bytes(self._header, loading.dtype)
        need = loading.held_against_guards(lambda untouched: MemoryNeed(untouched, copied))
        tell_prealloc(self._resident.numel(), what="weights", artifact_id=self._artifact_id)
        with measured(
            need,
            loading.guard,
            artifact_id=self._artifact_id,
            shared_bytes=self._resident.numel(),
            untouched=lambda: loading.arena.untouched_bytes + min(need.swap_bytes, loading.swap_bytes()),
        ):
            return self._build(stop)

    def _build(self, stop: threading.Event) -> ModelOnArena:
        loading, header = self._loading, self._header
        rest = Rest(loading.is_busy, stop)
        populate(self._resident, stop, rest.take)
        weights = bind(self._mapped, header, self._architecture, loading.dtype, stop=stop, rest=rest.take)
        limit = min(loading.max_model_len or math.inf, self._architecture.max_position_embeddings)
        kv = KvFormat.of(
            self._architecture, loading.kv_dtype, compute_dtype(self._architecture.dtype, loading.dtype)
        )
        decoder = loading.kernels.decoder(self._architecture, weights, kv, int(limit))
        build = build_of(loading.kernels.name, decoder.dtype, kv.dtype, weights.layout)
        layout = weights.layout.abi if weights.layout else "as stored"
        log.info("weights_bound", artifact_id=self._artifact_id, layout=layout)
        check_graph(header, decoder.architecture, decoder.weights, build)
        return ModelOnArena(
            decoder,
            loading.arena,
            vocab_size=self._architecture.vocab_size,
            max_context_tokens=int(limit),
            weights_bytes=self._mapped.numel(),
            artifact_id=self._artifact_id,
            built=Built(header.model_graph, build),
        )


def _read_header(mapped: torch.Tensor) -> Header:
    extent = header_bytes(mapped[: PREAMBLE.size].numpy().tobytes())
    return Header.decode(mapped[:extent].numpy().tobytes())
