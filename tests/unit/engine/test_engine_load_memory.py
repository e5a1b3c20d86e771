"""What a load takes of memory is measured beside what was foreseen."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.common.ids import ArtifactId
from services.common.memory_guard import UNGUARDED, Bound, MemoryGuard
from services.engine.arena import Arena
from services.engine.kernels.portable import PortableKernels
from services.engine.load_memory import TOLERANCE_BYTES, OwnMemory, measured
from services.engine.loaded_model import ModelLoading
from services.engine.memory_need import MemoryNeed
from tests.unit.engine.decoding import prepared

MIB = 1 << 20
ARTIFACT = ArtifactId("a" * 64)


@dataclasses.dataclass(frozen=True, slots=True)
class Told(OwnMemory):
    """A process whose numbers are given."""

    def __init__(self, folder: Path, resident_bytes: int, peak_bytes: int) -> None:
        OwnMemory.__init__(self, folder)
        kib = [f"VmHWM:\t{peak_bytes >> 10} kB", f"VmRSS:\t{resident_bytes >> 10} kB"]
        (folder / "status").write_text("\n".join(("Name:\tengine", *kib)))


@pytest.mark.parametrize(
    ("peak_bytes", "untouched_bytes", "measured_bytes"),
    [
        (100 * MIB, 10 * MIB, 10 * MIB),  # nothing was taken
        (137 * MIB, 10 * MIB, 17 * MIB),  # 30 in place and 7 of copies
        (136 * MIB, 4 * MIB, 10 * MIB),  # requests have used 6 of the arena meanwhile
        (120 * MIB, 10 * MIB, 10 * MIB),  # not all weights are resident
    ],
)
def test_what_is_a_loads_own_is_told(
    tmp_path: Path, peak_bytes: int, untouched_bytes: int, measured_bytes: int
) -> None:
    """Without weights used in place, and with an arena that counts whole, whoever touches it.

    Fault injection: turns red when `measured` leaves out the weights in place, or the arena.
    """
    own = Told(tmp_path, 100 * MIB, peak_bytes)
    guard = MemoryGuard(0.5, lambda: [Bound("this host", 1000 * MIB, 100 * MIB), Bound("ours", 800 * MIB, 0)])
    with (
        capture_logs() as logs,
        measured(
            MemoryNeed(10 * MIB, 7 * MIB),
            guard,
            artifact_id=ARTIFACT,
            shared_bytes=30 * MIB,
            untouched=lambda: untouched_bytes,
            own=own,
        ),
    ):
        pass
    expected = {"predicted_bytes": 17 * MIB, "measured_bytes": measured_bytes, "guard_bytes": 400 * MIB}
    [event] = [log for log in logs if log["event"] == "checkpoint_memory"]
    assert expected == {name: event[name] for name in expected}
    assert ("5", "info") == ((tmp_path / "clear_refs").read_text(), event["log_level"])


@pytest.mark.parametrize(("beyond", "level"), [(0, "info"), (1, "warning")])
def test_more_than_was_foreseen_is_a_warning(tmp_path: Path, beyond: int, level: str) -> None:
    """Beyond what belongs to no load; without a limit there is no room to tell.

    Fault injection: turns red when LoadMemory.is_beyond looks at the guard instead of the prediction.
    """
    own = Told(tmp_path, 0, TOLERANCE_BYTES + beyond * MIB)
    with (
        capture_logs() as logs,
        measured(
            MemoryNeed(0), UNGUARDED, artifact_id=ARTIFACT, shared_bytes=0, untouched=lambda: 0, own=own
        ),
    ):
        pass
    assert [(level, None)] == [(log["log_level"], log["guard_bytes"]) for log in logs]


@pytest.mark.parametrize(("copied_out_mib", "resident_mib"), [(0, 0), (100, 0), (100, 30), (200, 30)])
def test_what_requests_that_are_set_back_take_meanwhile_is_no_surprise(
    tmp_path: Path, copied_out_mib: int, resident_mib: int
) -> None:
    """It was foreseen: all of it counts, as much of it as is copied out during a load, however much weights are resident.

    Fault injection: turns red when MemoryNeed.own_bytes, or what `measured` counts as kept, leaves out swap_bytes.
    """
    own = Told(tmp_path, 100 * MIB, (100 + copied_out_mib + resident_mib) * MIB)
    with (
        capture_logs() as logs,
        measured(
            MemoryNeed(0, swap_bytes=200 * MIB),
            UNGUARDED,
            artifact_id=ARTIFACT,
            shared_bytes=30 * MIB,
            untouched=lambda: (200 - copied_out_mib) * MIB,
            own=own,
        ),
    ):
        pass
    told = [(log["log_level"], log["predicted_bytes"], log["measured_bytes"]) for log in logs]
    assert [("info", 200 * MIB, 200 * MIB)] == told


def test_the_kernel_tells_of_a_peak_that_is_over() -> None:
    """What was taken and given back since the peak was forgotten counts, what was before does not."""
    own = OwnMemory()
    own.forget_peak()
    before = own.resident_bytes
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        taken.write(bytes(64 * MIB))
    assert own.peak_bytes - before > 60 * MIB
    own.forget_peak()
    assert own.peak_bytes - own.resident_bytes < 16 * MIB


def test_every_load_is_measured(artifacts: dict[str, Path]) -> None:
    """Weights that are copied to another dtype are foreseen as what they take.

    Fault injection: turns red when VerifiedWeights.build measures nothing.
    """
    loading = ModelLoading(arena=Arena(MIB), kernels=PortableKernels(), dtype="float32", max_model_len=0)
    with capture_logs() as logs:
        loading.load(prepared(artifacts["stories-v1"]))
    [event] = [log for log in logs if log["event"] == "checkpoint_memory"]
    assert "info" == event["log_level"]
    assert event["predicted_bytes"] > 2 * MIB, "the arena, and 1.5 MB of bf16 as fp32"
