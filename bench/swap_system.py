"""One of each process, with its weights where they can be seen and taken away, for as long as a scope lasts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from bench import page_cache
from bench.swap_memory import Memory
from bench.swap_operator import Operator
from services.cli.control_client import ControlClient
from services.cli.home import Home
from services.cli.stack import Flags, Stack, reserved_addresses
from services.common.client import Client
from services.common.ids import ArtifactId
from services.loader.places import DEV_SHM


class System(NamedTuple):
    """A running system.

    Attributes:
        client: Of its gateway; asks once.
        weights: Where the loader puts them: a directory of memory.
    """

    home: Home
    stack: Stack
    client: Client
    operator: Operator
    weights: Path

    def memory(self) -> Memory:
        """What all of it holds now."""
        running = {child.name: child.pid for child in self.stack.children}
        return Memory.look({name: pid for name, pid in running.items() if pid is not None}, self.weights)

    def engine_log(self) -> list[str]:
        return (self.home.logs / "engine.log").read_text(errors="replace").splitlines()

    def make_cold(self, artifact_id: ArtifactId) -> None:
        """Takes an artifact's weights out of memory: the loader's own, and the page cache."""
        for path in self.weights.rglob(f"{artifact_id}*"):
            path.unlink()
        page_cache.drop((self.home.store / artifact_id).glob("*.halogen"))
        if cache := self.home.cache:
            page_cache.drop(cache.rglob(f"{artifact_id}.*"))


@contextlib.asynccontextmanager
async def running(home: Home, ticket_ttl_s: float, flags: Flags | None = None) -> AsyncIterator[System]:
    """Starts one for the scope.

    Args:
        home: Keeps what was registered from one to the next.
        ticket_ttl_s: A drain lasts as long at least.
        flags: What else each role is told.
    """
    ttl = ("--ticket-ttl-s", str(ticket_ttl_s))
    with (
        tempfile.TemporaryDirectory(dir=DEV_SHM, prefix="halogen-bench-") as weights,
        reserved_addresses() as addresses,
    ):
        told = {"engine": ttl, "scheduler": ttl, "loader": ("--weights-dir", weights)}
        for role, more in (flags or {}).items():
            told[role] = (*told.get(role, ()), *more)
        async with (
            Stack(home, addresses, print, told) as stack,
            Client(addresses.gateway, max_tries=1) as client,
            ControlClient(addresses.gateway) as control,
        ):
            yield System(home, stack, client, Operator(control), Path(weights))
