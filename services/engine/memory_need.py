"""What serving an artifact will take of memory, held against every limit before any of it is taken."""

from __future__ import annotations

from typing import NamedTuple

from services.common.checkpoint.dtype import DType
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.packed_file import expected_header
from services.common.memory_guard import MemoryGuard, guarded
from services.engine.model.weights import DTypeChoice, compute_dtype


class MemoryNeed(NamedTuple):
    """Bytes that are not taken yet.

    Attributes:
        arena_bytes: For keys and values: what of the arena was never used.
        copied_bytes: For copies of weights, in another dtype.
        weights_bytes: For weights that the loader is yet to bring into memory, as its own.
        swap_bytes: For keys and values of requests that are set back, outside of the arena.
    """

    arena_bytes: int
    copied_bytes: int = 0
    weights_bytes: int = 0
    swap_bytes: int = 0

    @classmethod
    def foreseen(
        cls,
        manifest: Manifest,
        dtype: DTypeChoice,
        arena_bytes: int,
        *,
        is_nearby: bool,
        layout: KernelLayout | None = None,
    ) -> MemoryNeed:
        """Of an artifact that is to be computed in `dtype`; header and padding count as weights.

        Args:
            manifest: The artifact's.
            dtype: What the engine computes in.
            arena_bytes: As above.
            is_nearby: Whether the loader needs no more memory for its weights.
            layout: How they are to lie; None: as they are stored.
        """
        stored = manifest.architecture.dtype
        weights_bytes = (
            expected_header(manifest, layout).file_bytes if layout else manifest.weights.size_bytes
        )
        is_copied = compute_dtype(stored, dtype) is not stored
        return cls(
            arena_bytes=arena_bytes,
            copied_bytes=weights_bytes * DType.FP32.bits // stored.bits if is_copied else 0,
            weights_bytes=0 if is_nearby else weights_bytes,
        )

    @property
    def own_bytes(self) -> int:
        """What this process will take."""
        return self.arena_bytes + self.swap_bytes + self.copied_bytes

    def check(self, own: MemoryGuard, shared: MemoryGuard) -> None:
        """Raises Overloaded, with the arithmetic, where memory would be short.

        Args:
            own: Bounds what this process takes.
            shared: Bounds what this process and the loader take together.
        """
        refusal = own.refusal(self.own_bytes) or shared.refusal(self.own_bytes + self.weights_bytes)
        if refusal:
            raise guarded(
                f"{refusal} (needed: {self.arena_bytes} for keys and values, by --kv-arena-bytes, "
                f"{self.swap_bytes} for those of requests that are set back, by --kv-swap-bytes, "
                f"{self.copied_bytes} for copies of weights, {self.weights_bytes} for weights)"
            )
