"""What a load took of memory at its worst, beside what was foreseen and what the guard had left."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from services.common.ids import ArtifactId
from services.common.memory_guard import MemoryGuard
from services.engine.memory_need import MemoryNeed

TOLERANCE_BYTES: Final = 64 << 20  # for what is no weight: objects, scratch, requests that run meanwhile

log = structlog.get_logger(component="memory_pool")


class LoadMemory(NamedTuple):
    """Bytes of this process's own: without weights that are used in place, with keys and values as if all room were in use.

    Attributes:
        predicted_bytes: What the guard was asked for.
        measured_bytes: What the load took at its worst.
        guard_bytes: What the guard would have let it take; None without a limit.
    """

    predicted_bytes: int
    measured_bytes: int
    guard_bytes: int | None

    @property
    def is_beyond(self) -> bool:
        """Whether more was taken than foreseen, so that the next load may pass the guard unseen."""
        return self.measured_bytes > self.predicted_bytes + TOLERANCE_BYTES


@dataclasses.dataclass(frozen=True, slots=True)
class OwnMemory:
    """What the kernel counts of this process.

    Attributes:
        proc: Its directory.
    """

    proc: Path = Path("/proc/self")

    @property
    def resident_bytes(self) -> int:
        return self._status("VmRSS:")

    @property
    def peak_bytes(self) -> int:
        """The most that was resident since the peak was last forgotten."""
        return self._status("VmHWM:")

    def forget_peak(self) -> None:
        """Begins anew; where that is not allowed, a peak of before may be taken for one of now."""
        with contextlib.suppress(OSError):
            (self.proc / "clear_refs").write_text("5", encoding="ascii")

    def _status(self, name: str) -> int:
        lines = (self.proc / "status").read_text(encoding="ascii", errors="replace").splitlines()
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


@contextlib.contextmanager
def measured(
    need: MemoryNeed,
    guard: MemoryGuard,
    *,
    artifact_id: ArtifactId,
    shared_bytes: int,
    untouched: Callable[[], int],
    own: OwnMemory | None = None,
) -> Iterator[None]:
    """Measures a load that the scope makes, and logs `checkpoint_memory`, as a warning if more was taken than foreseen.

    Args:
        need: What was foreseen.
        guard: What it was held against.
        artifact_id: For the log.
        shared_bytes: How much of the weights becomes resident in place.
        untouched: How much of that room was never used.
        own: This process's memory.
    """
    own = own or OwnMemory()
    guard_bytes = guard.room_bytes
    own.forget_peak()
    kept_bytes = need.arena_bytes + need.swap_bytes
    before = own.resident_bytes + kept_bytes
    yield
    taken = own.peak_bytes + untouched() - before - shared_bytes
    found = LoadMemory(
        predicted_bytes=need.own_bytes,
        measured_bytes=kept_bytes + max(0, taken),
        guard_bytes=guard_bytes,
    )
    tell = log.warning if found.is_beyond else log.info
    tell("checkpoint_memory", artifact_id=artifact_id, **found._asdict())
