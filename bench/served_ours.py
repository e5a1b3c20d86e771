"""All of halogen on one machine, with one model, as a contender."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.ask import Ask
from bench.contender import Heard, ServedContender
from bench.engine_model import EngineModel
from bench.engine_names import OURS
from services.cli import publish
from services.cli.control_client import Order
from services.cli.home import Home
from services.cli.stack import Stack, reserved_addresses
from services.common.client import Client

MODEL: Final = "bench"
_WAIT_S: Final = 300.0


@contextlib.asynccontextmanager
async def served_ours(
    model: EngineModel, place: tuple[str, ...], threads: int, work: Path
) -> AsyncIterator[ServedContender]:
    """Gateway, scheduler, engine, loader and etcd for the scope, which begins when the model is served.

    Args:
        model: What they serve.
        place: The loader's flags that say where it puts weights.
        threads: Of the engine.
        work: For their files.
    """
    # Every repeat asks for something new; a cache would only take time to look in.
    flags = {"engine": ("--threads", str(threads), "--prefix-cache", "false"), "loader": place}
    with (
        tempfile.TemporaryDirectory(dir=work, prefix="served-") as folder,
        reserved_addresses() as addresses,
    ):
        (home := Home(Path(folder) / ".halogen")).make()
        began_s = time.perf_counter()
        async with Stack(home, addresses, print, flags) as stack, Client(addresses.gateway) as client:
            order = Order(MODEL, "stable", "", who="bench", why="bench")
            artifact = model.store / model.artifact_id
            await publish.publish(
                addresses.gateway, order, artifact, str(home.store), reverify=False, wait_s=_WAIT_S
            )
            yield ServedContender(
                name=OURS,
                roots=tuple(child.pid for child in stack.children if child.pid is not None),
                ready_s=time.perf_counter() - began_s,
                vocabulary=model.shape.vocab_size,
                ask=_Asker(client).ask,
            )


class _Asker:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def ask(self, ask: Ask) -> Heard:
        """One request, greedy and of full length, to its end."""
        first_s, last_s, tokens = 0.0, 0.0, 0
        stream = self._client.generate(
            ask.prompt, model=MODEL, max_tokens=ask.tokens, temperature=0, ignore_eos=True
        )
        async with stream:
            async for chunk in stream:
                if chunk.token_ids:
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
                    tokens += len(chunk.token_ids)
        return Heard(first_s, last_s, tokens)
