"""Real weights swapped to and fro in one engine: nothing stays behind, and the answers are those of a fresh start."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from services.common.checkpoint.dtype import DType
from services.common.errors import CorruptData, HalogenError, Overloaded, PreconditionFailed
from services.common.ids import ArtifactId
from services.common.registry.publish_records import Stage
from services.common.registry.records import GenerationState as State
from services.engine.kernels.portable import PortableKernels
from services.engine.loaded_model import PreparedArtifact
from tests.tiny_checkpoints import TinyShape, make_tiny_artifact
from tests.unit.engine.decoding import Decoding, prepared
from tests.unit.engine.fakes import CountingModel, request
from tests.unit.engine.generation_world import NEW, OLD, World, world
from tests.unit.engine.test_engine_return import fail
from tests.unit.engine.test_engine_weights import mapping_of

REPEATS: Final = 50
PROMPT: Final = (3, 4, 5)
TOKENS: Final = 8


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error.with_traceback(None)

    return fail


TORN = CorruptData("not as it was", reason="IDENTITY_MISMATCH")
OTHER = PreconditionFailed("another model", reason="GRAPH_MISMATCH")
GONE = PreconditionFailed("in other versions", reason="SOURCE_CHANGED")
FULL = Overloaded("needs 2 + holds 3 > 4", reason="MEMORY_GUARD")
FAULTS: dict[str, tuple[str, Exception, Stage]] = {
    "fetch": ("tests.unit.engine.generation_world.FakeLoader.prepare", GONE, Stage.FETCH),
    "digest": ("services.engine.loaded_model.check_tensors", TORN, Stage.DIGEST),
    "graph": ("services.engine.loaded_model.check_graph", OTHER, Stage.GRAPH),
    "guard": ("services.engine.loaded_model.ModelLoading.held_against_guards", FULL, Stage.GUARD),
    "allocation": ("services.engine.loaded_model.bind", HalogenError("full"), Stage.ALLOCATION),
    "warm-up": ("services.engine.generation_load.warm_up", HalogenError("NaN"), Stage.WARM_UP),
    "swap": ("services.engine.generations.Generations.activate", HalogenError("late"), Stage.SWAP),
}


async def swap(it: World, artifact: ArtifactId) -> None:
    """Publishes and commits, and waits until nothing else is here."""
    await it.serve(artifact, await it.target(artifact))
    await it.until(lambda states: states == {artifact: State.ACTIVE})
    await it.manager.disposal.settled()


async def unmapped(weights: Path) -> None:
    """Returns when this process maps them no more: a thread drops what it worked on a moment after it has told."""
    async with asyncio.timeout(10):
        while mapping_of(weights):  # noqa: ASYNC110  # the kernel tells nobody
            await asyncio.sleep(0.001)


# once copies have been made of weights
COPYING_FAULTS: dict[str, tuple[str, Exception, Stage]] = {
    "allocation": ("services.engine.loaded_model.KvFormat.of", HalogenError("full"), Stage.ALLOCATION),
    "warm-up": FAULTS["warm-up"],
}
WIDE: Final = TinyShape(hidden_size=256, intermediate_size=512, vocab_size=1024, dtype=DType.FP16)


# Fault injection: turns red when GenerationLoad._note lets the frames of a failure be, or `_let_go` keeps what has FAILED.
@pytest.mark.parametrize("stage", FAULTS)
async def test_r_a11_candidates_that_fail_leave_no_memory_behind(
    artifacts: dict[str, Path], monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Fifty times at each stage: named with stage and reason, unmapped the way of those that have served."""
    where, error, expected = FAULTS[stage]
    candidate = prepared(artifacts["grouped"])
    async with world() as it:
        it.loader.real[NEW] = candidate
        await swap(it, OLD)
        monkeypatch.setattr(where, raising(error))
        for _ in range(REPEATS):
            await fail_once(it, expected)
            await unmapped(candidate.weights)


# Fault injection: turns red when `Generation.let_go` keeps the model, or GenerationLoad._note the frames of a failure.
@pytest.mark.parametrize("stage", COPYING_FAULTS)
async def test_r_a11_candidates_that_fail_leave_no_copies_of_weights_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Weights that are served from copies in float32: anonymous memory stays level, by far less than fifty of them."""
    where, error, expected = COPYING_FAULTS[stage]
    candidate = prepared(make_tiny_artifact(tmp_path, WIDE)[0])
    levels: list[int] = []
    async with world() as it:
        it.loader.real[NEW] = candidate
        await swap(it, OLD)
        monkeypatch.setattr(where, raising(error))
        for _ in range(REPEATS):
            await fail_once(it, expected)
            await unmapped(candidate.weights)
            levels.append(anonymous_bytes())
    copies_bytes = 2 * candidate.weights.stat().st_size
    assert max(levels[-10:]) - min(levels[:10]) < 10 * copies_bytes


async def fail_once(it: World, stage: Stage) -> None:
    """The candidate fails there, and goes."""
    await it.target(NEW)
    await it.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.FAILED})
    assert [stage] == [r.failure.stage for r in it.records if r.failure]
    await it.target(OLD)
    await it.until(lambda states: states == {OLD: State.ACTIVE})
    await it.manager.disposal.settled()


def anonymous_bytes() -> int:
    """Of this process, resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


async def test_r_a11_candidates_that_are_never_committed_leave_no_memory_behind() -> None:
    """Fifty times ACTIVE and failed by the leader's word: the old one serves, and each new one's model is gone.

    Fault injection: turns red when `Assignments.wanted` counts targets that have failed.
    """
    models: list[weakref.ref[CountingModel]] = []

    def build() -> CountingModel:
        model = CountingModel()
        models.append(weakref.ref(model))
        return model

    async with world(ticket_ttl_s=0) as it:
        it.building[NEW] = build
        await swap(it, OLD)
        for _ in range(REPEATS):
            await it.target(NEW)
            await it.until(lambda states: states == {OLD: State.ACTIVE, NEW: State.ACTIVE})
            await fail(it)
            await it.until(lambda states: states == {OLD: State.ACTIVE})
            await it.manager.disposal.settled()
    gc.collect()
    assert [None] * REPEATS == [model() for model in models]


async def test_r_a22_swaps_to_and_fro_answer_as_a_fresh_start_does(tmp_path: Path) -> None:
    """Ten times each, weights of which the engine makes copies: no transform is ever applied to what was loaded before.

    Fault injection: turns red when `VerifiedWeights.build` keeps weights that it has bound before.
    """
    shape = dataclasses.replace(TinyShape(), dtype=DType.FP16)
    both = {
        name: prepared(make_tiny_artifact(tmp_path, shape, seed=seed)[0])
        for name, seed in ((OLD, 1), (NEW, 2))
    }
    fresh = {name: _fresh(artifact) for name, artifact in both.items()}
    assert fresh[OLD] != fresh[NEW]
    async with world() as it:
        it.loader.real.update(both)
        for _ in range(10):
            for name in (OLD, NEW):
                await swap(it, name)
                async with it.run(name, request(prompt=PROMPT, max_tokens=TOKENS)) as stream:
                    assert fresh[name] == [token async for piece in stream for token in piece.token_ids]


def _fresh(artifact: PreparedArtifact) -> list[int]:
    return Decoding(artifact.weights.parent, PortableKernels(), "auto").alone([PROMPT], TOKENS)[0].ids
