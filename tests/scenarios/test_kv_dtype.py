"""What keys and values are stored in decides how much an engine takes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from services.common.errors import InvalidRequest
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]

ARENA_BYTES: Final = 150_000  # 16 blocks in int8, 9 in bf16
NEW: Final = 180  # with the prompt 12 blocks


async def test_an_arena_of_int8_takes_what_one_of_bf16_cannot(start: Start, stories: dict[str, Path]) -> None:
    """The engine tells schedulers the bytes of its blocks, and tickets, warm-ups and its own books follow.

    Fault injection: turns red when ModelOnArena counts blocks of the weights' dtype.
    """
    system: Cluster = await start("in_process", engine={"kv_arena_bytes": ARENA_BYTES, "kv_dtype": "int8"})
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        answer = await client.generate("Once upon a time", max_tokens=NEW, ignore_eos=True).complete()
    assert NEW == len(answer.token_ids)


async def test_an_arena_of_bf16_refuses_it(start: Start, stories: dict[str, Path]) -> None:
    """The same request on the same arena."""
    system: Cluster = await start("in_process", engine={"kv_arena_bytes": ARENA_BYTES})
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        with pytest.raises(InvalidRequest) as refused:
            await client.generate("Once upon a time", max_tokens=NEW, ignore_eos=True).complete()
    assert "PROMPT_TOO_LARGE" == refused.value.reason
