"""How soon a rollback is served to what is still in memory, while the weights of another publish trickle in."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Final

from bench.swap_models import Pair
from bench.swap_operator import Operator
from bench.swap_system import running
from halogen.v1 import control_pb2 as pb
from services.cli.home import Home
from services.common.ids import ArtifactId
from tests.unit.loader.store_server import PIECE_BYTES, StoreServer, store_server

SLOW_BYTES_PER_S: Final = 100_000
_TTL_S: Final = 10.0  # what was served before stays as long
_WEIGHTS: Final = "model.halogen"


async def beside_slow_fetch_s(home: Home, pair: Pair, slow: ArtifactId, rounds: int) -> list[float]:
    """Seconds from each rollback to the first request that is given to what it names.

    Args:
        pair: What is served, and what was before.
        slow: What is fetched meanwhile, and does not come to its end.
    """
    async with store_server(home.store) as server:
        far = home.reading(server.url)
        await _register(far, home.root / "cache-1", (*pair, slow))
        flags = {"loader": ("--cache-dir", str(home.root / "cache-2"), "--store-connections", "1")}
        async with running(far, _TTL_S, flags) as system:
            return [await _roll_back(system.operator, server, pair, slow) for _ in range(rounds)]


async def _register(far: Home, cache: Path, artifact_ids: tuple[ArtifactId, ...]) -> None:
    """Has them verified by a loader that leaves nothing to the next one."""
    async with running(far, _TTL_S, {"loader": ("--cache-dir", str(cache))}) as system:
        await system.operator.register(*artifact_ids)


async def _roll_back(operator: Operator, server: StoreServer, pair: Pair, slow: ArtifactId) -> float:
    server.bytes_per_s = math.inf
    await operator.control.connect(_TTL_S)
    for artifact_id in pair:
        await operator.swap(artifact_id)
    server.bytes_per_s = SLOW_BYTES_PER_S
    comes = asyncio.Event()
    server.alarms[_WEIGHTS] = (server.sent_bytes[_WEIGHTS] + PIECE_BYTES, comes)
    revision = await operator.publish(slow)
    await comes.wait()
    took_s = await operator.roll_back()
    assert (await operator.end(revision)).state == pb.PUBLISH_STATE_SUPERSEDED
    return took_s
