"""A prompt asked again, through every hop: cheaper, said so, never other than computed; and cold after a swap."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.cli import publish
from services.cli.control_client import Order
from services.common.auth.role import Role
from services.common.client import Client
from services.common.completion import Completion
from services.common.rpc.endpoint import Endpoint
from tests.credentials import hand_out
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]
PROMPT = [random.Random(16).randrange(1, 512) for _ in range(150)]  # no secret
WHOLE = 144  # tokens in its whole pages


async def ask(client: Client, salt: str = "", **options: Any) -> Completion:
    return await client.generate(
        PROMPT, max_tokens=16, temperature=0, ignore_eos=True, cache_salt=salt, timeout_s=60, **options
    ).complete()


async def test_r_a16_s_c1_a_swap_takes_no_keys_and_values_along(
    start: Start, stories: dict[str, Path]
) -> None:
    """R-A16, S-C1: warm on v1, then v2 is published: its answer is the cold one of v2, and cached_tokens is 0; and back.

    Fault injection: turns red when ModelOnArena.origin leaves out the artifact.
    """
    system: Cluster = await start("in_process")
    async with system.client() as client:
        told: list[list[Completion]] = []
        for story in ("stories-v1", "stories-v2"):
            await system.publish("stories", stories[story])
            told.append([await ask(client, salt) for salt in ("", "", "cold")])
        await system.publish("stories", stories["stories-v1"])
        back = await ask(client)
    for first, warm, cold in told:
        assert [0, WHOLE, 0] == [each.usage.cached_tokens for each in (first, warm, cold)]
        assert cold.token_ids == first.token_ids == warm.token_ids
    assert told[0][0].token_ids != told[1][0].token_ids
    assert told[0][0].token_ids == back.token_ids


async def test_s_c5_a_salt_that_is_the_artifacts_id_finds_nothing(
    start: Start, stories: dict[str, Path]
) -> None:
    """S-C5: neither the revision's artifact nor anything else as a salt reaches what was kept under another.

    Fault injection: turns red when EngineServicer does not pass the salt on.
    """
    system: Cluster = await start("in_process")
    published = await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        salts = ["", published.artifact_id, str(published.revision), "stories", "tenant", "tenant"]
        told = [await ask(client, salt) for salt in salts]
    assert [0, 0, 0, 0, 0, WHOLE] == [each.usage.cached_tokens for each in told]


async def test_tenants_share_nothing_whatever_salt_they_give(
    start: Start, stories: dict[str, Path], tmp_path: Path
) -> None:
    """Two callers, the same prompt, equal salts: each is warm by its own requests alone, and all answers are the same.

    Fault injection: turns red when the gateway does not pass the caller's name on, or `root` leaves it out.
    """
    handed = hand_out(tmp_path, one=Role.INFER, other=Role.INFER)
    system: Cluster = await start("in_process", gateway={"callers_file": handed.callers_file})
    publisher = Endpoint(system.gateway, handed.credentials(Role.PUBLISH))
    order = Order("stories", "stable", "", who="test", why="test")
    await publish.publish(
        publisher, order, stories["stories-v1"], str(system.store), reverify=False, wait_s=60
    )
    told: list[Completion] = []
    for salt in ("", "salt"):
        for name in ("one", "other", "one", "other"):
            async with Client(system.gateway, token=handed.tokens[name]) as client:
                told.append(await ask(client, salt))
    assert [0, 0, WHOLE, WHOLE] * 2 == [each.usage.cached_tokens for each in told]
    assert all(told[0].token_ids == each.token_ids for each in told)


async def test_an_answer_that_a_stop_string_ends_tells_what_was_there(
    start: Start, stories: dict[str, Path]
) -> None:
    """The gateway breaks the engine off before its last word, and knows all the same."""
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        whole = await ask(client)
        stopped = await ask(client, stop=[whole.text[4:7]])
    assert (WHOLE, whole.text[4:7]) == (stopped.usage.cached_tokens, stopped.matched_stop)
