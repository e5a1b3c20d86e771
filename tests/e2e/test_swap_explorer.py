"""Seeded schedules of publishes, slow and failing loads, kills and outages over real processes under load."""

from __future__ import annotations

import collections
import os
import time
from pathlib import Path
from typing import Final

import pytest

from services.common.registry import keys
from services.common.registry.publish_records import IntentRecord
from tests.e2e.swap_moves import KINDS
from tests.e2e.swap_rest import check_rest, come_to_rest
from tests.e2e.swap_world import SwapWorld, swap_world
from tests.simulation.moves import Picks
from tests.simulation.schedule import Move, drawn
from tests.tiny_checkpoints import MULTI_BLOCK, TinyShape, make_tiny_artifact

RUNS: Final = int(os.environ.get("HALOGEN_SWAP_RUNS", "1"))
FIRST_SEED: Final = int(os.environ.get("HALOGEN_FIRST_SEED", "4"))  # of every kind some
LENGTH: Final = 24  # moves; about eight publishes and two kills among them
WEIGHTS: Final = {name: kind.weight for name, kind in KINDS.items()}

pytestmark = pytest.mark.xdist_group("fleet")  # one at a time: each is many processes


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three that are sound, the last of them large, and one to be spoilt."""
    root = tmp_path_factory.mktemp("artifacts")
    shapes = (TinyShape(), TinyShape(), MULTI_BLOCK, TinyShape())
    return [make_tiny_artifact(root, shape, seed=seed)[0] for seed, shape in enumerate(shapes)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
async def test_swaps_hold_on_real_processes(
    seed: int, artifacts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever happens in whatever order, every invariant holds that can be seen from outside.

    Fault injection: docs/swap-invariants.md says what turns each of them red.
    """
    made: list[Move] = []
    began_s = time.monotonic()
    try:
        async with swap_world(tmp_path, artifacts[:-1], artifacts[-1]) as world:
            async with world.loaded():
                for move in drawn(seed, WEIGHTS, LENGTH):
                    made.append(move)
                    await KINDS[move.kind].make(world, Picks(move.number))
                await come_to_rest(world)
            check_rest(world)
            await world.system.nothing_is_promised()
    except Exception as failure:
        raise AssertionError(f"seed {seed}, which had made {made}") from failure
    with capsys.disabled():
        print(f"\nswaps: seed {seed}: {told(world)}, {time.monotonic() - began_s:.0f} s")


def told(world: SwapWorld) -> str:
    """What has happened, in figures."""
    intents = world.observer.records(keys.INTENTS, IntentRecord).values()
    ends = collections.Counter(each.state.lower() for each in intents)
    return (
        f"{', '.join(f'{times} {state}' for state, times in sorted(ends.items()))}, {world.refused} refused, "
        f"{len(world.killed_s)} kills, {world.running.ended} answers"
    )
