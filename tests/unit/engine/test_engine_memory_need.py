"""What an engine will take of memory, and whether there is as much."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.manifest import Manifest, ManifestFile, Role
from services.common.errors import Overloaded
from services.common.ids import ArtifactId, InstanceId, ProcessId
from services.common.memory_guard import Bound, MemoryGuard
from services.common.registry.records import LoaderRecord
from services.engine.arena import Arena
from services.engine.device_memory import device_bounds
from services.engine.kernels.protocol import Kernels
from services.engine.loaded_model import ModelLoading
from services.engine.memory_need import MemoryNeed
from services.engine.model.weights import DTypeChoice
from services.engine.nearby_weights import NearbyWeights
from tests.tiny_checkpoints import TinyShape, requirements_of

HOST, GROUP = Bound("this host", 1000, 500), Bound("the control group", 200, 50)
DEVICE = Bound("device cuda:0", 100, 0)
BF16 = Architecture.from_config(TinyShape().config(), DType.BF16)
A, B = ArtifactId("a" * 64), ArtifactId("b" * 64)


@pytest.mark.parametrize(
    ("need", "own", "shared", "refusal"),
    [
        (MemoryNeed(100, 50, 200), [GROUP, HOST], [HOST], ""),
        (MemoryNeed(100, 51, 0), [GROUP, HOST], [HOST], "needs 151 + holds 50 > 1 x limit 200 bytes of the control group"),
        (MemoryNeed(100, 50, 351), [GROUP, HOST], [HOST], "needs 501 + holds 500 > 1 x limit 1000 bytes of this host"),
        (MemoryNeed(501), [HOST], [HOST], "needs 501 + holds 500 > 1 x limit 1000 bytes of this host"),
        (MemoryNeed(300, 100, 50, 50), [HOST], [HOST], ""),
        (MemoryNeed(300, 100, 50, 51), [HOST], [HOST], "needs 501 + holds 500 > 1 x limit 1000 bytes of this host"),
        (MemoryNeed(30, 30, 40), [HOST], [HOST, DEVICE], ""),
        (MemoryNeed(30, 30, 41), [HOST], [HOST, DEVICE], "needs 101 + holds 0 > 1 x limit 100 bytes of device cuda:0"),
    ],
)  # fmt: skip
def test_all_that_is_needed_stays_below_every_limit(
    need: MemoryNeed, own: Sequence[Bound], shared: Sequence[Bound], refusal: str
) -> None:
    """Weights count where other processes' memory does; the refusal tells what is needed for what.

    Fault injection: turns red when MemoryNeed.check leaves out the arena, the swap space, or the weights.
    """
    own_guard, shared_guard = MemoryGuard(1, lambda: own), MemoryGuard(1, lambda: shared)
    if not refusal:
        need.check(own_guard, shared_guard)
        return
    with pytest.raises(Overloaded) as refused:
        need.check(own_guard, shared_guard)
    assert "MEMORY_GUARD" == refused.value.reason
    told = (
        f"{need.arena_bytes} for keys and values, by --kv-arena-bytes, "
        f"{need.swap_bytes} for those of requests that are set back, by --kv-swap-bytes, "
        f"{need.copied_bytes} for copies of weights, {need.weights_bytes} for weights"
    )
    assert f"{refusal} (needed: {told})" in refused.value.message


@pytest.mark.parametrize(
    ("dtype", "stored", "is_nearby", "expected"),
    [
        ("auto", DType.BF16, False, MemoryNeed(7, 0, 100)),
        ("auto", DType.BF16, True, MemoryNeed(7, 0, 0)),
        ("auto", DType.FP16, True, MemoryNeed(7, 200, 0)),
        ("float32", DType.BF16, False, MemoryNeed(7, 200, 100)),
        ("float32", DType.FP32, True, MemoryNeed(7, 0, 0)),
    ],
)
def test_what_an_artifact_needs_is_foreseen_from_its_manifest(
    dtype: DTypeChoice, stored: DType, is_nearby: bool, expected: MemoryNeed
) -> None:
    """Before a byte of it is brought."""
    weights = ManifestFile(path="model.halogen", size_bytes=100, sha256="0" * 64, role=Role.WEIGHTS)
    architecture = dataclasses.replace(BF16, dtype=stored)
    manifest = Manifest(architecture, (weights,), requirements_of(BF16))
    assert expected == MemoryNeed.foreseen(manifest, dtype, 7, is_nearby=is_nearby)


def test_an_arena_needs_what_it_has_not_touched() -> None:
    """All of it at first, nothing once every byte was written."""
    arena = Arena(8 << 20)
    blocks = arena.blocks(1 << 12).view(torch.float32)
    assert 8 << 20 == arena.untouched_bytes
    blocks[0].fill_(1)
    assert 0 < arena.untouched_bytes < 8 << 20
    blocks.fill_(1)
    assert 0 == arena.untouched_bytes


@pytest.mark.parametrize(("given_back", "fits"), [(99, False), (100, True)])
def test_the_arena_makes_room_for_a_load_that_would_not_fit(
    given_back: int, fits: bool, kernels: Kernels
) -> None:
    """What it gives back is held no more; only then is a load refused, and one that fits asks for nothing.

    Fault injection: turns red when held_against_guards asks for no room.
    """
    held = [500]

    def make_room() -> None:
        held[0] -= given_back

    arena, guard = Arena(1000), MemoryGuard(1, lambda: [Bound("this host", 1600, held[0])])
    loading = ModelLoading(
        arena=arena, kernels=kernels, dtype="auto", max_model_len=0, guard=guard, make_room=make_room
    )
    assert MemoryNeed(1000, 100) == loading.held_against_guards(lambda untouched: MemoryNeed(untouched, 100))
    assert 500 == held[0]
    if fits:
        assert MemoryNeed(1000, 200) == loading.held_against_guards(
            lambda untouched: MemoryNeed(untouched, 200)
        )
        return
    with pytest.raises(Overloaded, match="needs 1200"):
        loading.held_against_guards(lambda untouched: MemoryNeed(untouched, 200))


@pytest.mark.parametrize("swap_bytes", [100, 101])
def test_what_requests_that_are_set_back_may_take_is_kept_for_them(swap_bytes: int, kernels: Kernels) -> None:
    """A load that leaves less than that below the guard is refused, before it takes anything and again before it is built.

    Fault injection: turns red when held_against_guards leaves out `swap_bytes`.
    """
    arena, guard = Arena(1000), MemoryGuard(1, lambda: [Bound("this host", 1700, 500)])
    loading = ModelLoading(
        arena=arena,
        kernels=kernels,
        dtype="auto",
        max_model_len=0,
        guard=guard,
        swap_bytes=lambda: swap_bytes,
    )
    if swap_bytes == 100:
        expected = MemoryNeed(1000, 100, swap_bytes=100)
        assert expected == loading.held_against_guards(lambda untouched: MemoryNeed(untouched, 100))
        return
    with pytest.raises(Overloaded, match="needs 1201"):
        loading.held_against_guards(lambda untouched: MemoryNeed(untouched, 100))


def test_a_device_tells_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is a CUDA device; the CPU's memory is the host's."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 100))
    assert () == device_bounds(torch.device("cpu"))
    assert (Bound("device cuda:1", 100, 70),) == device_bounds(torch.device("cuda", 1))


def loader(boot_id: str, *artifact_ids: ArtifactId, fills_memory: bool = True) -> LoaderRecord:
    return LoaderRecord(
        id=ProcessId("loader"),
        instance_id=InstanceId("i"),
        address="a:1",
        host="h",
        boot_id=boot_id,
        start_time="",
        artifact_ids=artifact_ids,
        fills_memory=fills_memory,
    )


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [
        ([], (False, False)),
        ([loader("here", A)], (True, False)),
        ([loader("there", A), loader("here", B)], (False, True)),
        ([loader("there", fills_memory=False)], (False, False)),
        ([loader("here", fills_memory=False)], (True, True)),
    ],
)
def test_weights_that_take_no_more_memory_are_known(
    loaders: list[LoaderRecord], expected: tuple[bool, bool]
) -> None:
    """Those that a loader of this host holds, and all where it leaves them on the disk."""
    nearby = NearbyWeights("here")
    nearby.hear(loaders)
    assert expected == (nearby.has(A), nearby.has(B))


def test_weights_that_others_could_have_the_room_of_are_known() -> None:
    """What a loader of this host has in memory, in whatever layout, and this engine does not hold.

    Fault injection: turns red when has_others() compares names of files.
    """
    nearby = NearbyWeights("here")
    nearby.hear(
        [loader("there", A), loader("here", B).model_copy(update={"weights": (f"{B}.packed32-v1.x86",)})]
    )
    assert (False, True) == (nearby.has_others({B}), nearby.has_others({A}))
