"""``python -m bench.mapping_engine LOADER``: has a loader prepare artifacts and maps them, as an engine does.

A line names an artifact; the answer tells how long it took, from the call to the last page, and what the kernel says of
the mapping. The mapping stays until the next line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from bench.touch import touch
from services.common.ids import ArtifactId
from services.common.rpc.client import connect
from services.engine.loader_client import LoaderClient
from services.engine.mapping import map_file, populate
from services.loader.smaps import parse_smaps


async def main(address: str) -> None:
    mapped: torch.Tensor | None = None
    async with connect(address) as channel:
        await channel.channel_ready()
        print("ready", flush=True)
        while artifact_id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            mapped = None  # what was mapped before goes first
            began_s = time.perf_counter()
            prepared = await LoaderClient(channel).prepare(ArtifactId(artifact_id))
            mapped = await asyncio.to_thread(_map, prepared.weights)
            seconds = time.perf_counter() - began_s
            print(json.dumps({"seconds": seconds, **_seen(mapped)}), flush=True)


def _map(weights: Path) -> torch.Tensor:
    mapped = map_file(weights)
    populate(mapped, threading.Event())
    touch([mapped])
    return mapped


def _seen(mapped: torch.Tensor) -> dict[str, Any]:
    with Path("/proc/self/smaps").open() as lines:
        smaps = parse_smaps(lines, mapped.data_ptr())
    return {"read_bytes": mapped.numel(), "huge_pages": smaps.is_huge, **smaps._asdict()}


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
