"""Loaders as real processes, to be killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from halogen.v1 import loader_pb2 as pb
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.rpc.client import connect

PROGRAM = """
import asyncio, importlib, json, sys, threading
from services.common.lifecycle import Stop
from services.common.registry.memory import MemoryStore
from services.common.telemetry.logs import configure_logs
from services.loader.config import LoaderConfig
from services.loader.serve import serve

store, weights_dir, held_at, more = sys.argv[1:]

def hold(at):
    place, _, wanted = at.partition("=")
    module, owner_name, name = place.split(":")
    owner = getattr(importlib.import_module(module), owner_name)
    method = getattr(owner, name)

    def held(self, *arguments, **named):
        if wanted in ("", str(*arguments[:1])):
            print("held", flush=True)
            threading.Event().wait()
        return method(self, *arguments, **named)

    setattr(owner, name, held)

if held_at:
    hold(held_at)
configure_logs("loader", "info")
config = LoaderConfig(
    id="child", place="tmpfs", store=store, weights_dir=weights_dir, drain_s=0.1, **json.loads(more)
)

async def main():
    stop = Stop()
    stop.listen()
    await serve(config, MemoryStore(), stop, lambda bound: print(bound, flush=True))

asyncio.run(main())
"""


BLOCK: Final = "services.loader.block_reader:BlockReader:_read_block"


class ChildLoader:
    """A loader in a process of its own."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._address = ""
        self._is_held = False
        self._events: list[str] = []

    async def started(self) -> None:
        """Returns when it can be reached; it may be held already."""
        while not self._address:
            await self._hear()

    async def prepare(self, artifact_id: str, layout: KernelLayout | None = None) -> pb.PreparedFile:
        """Where the weights are, in that layout or as they are stored."""
        wanted = pb.WeightLayout(**layout._asdict()) if layout else None
        request = pb.PrepareArtifactRequest(artifact_id=artifact_id, layout=wanted)
        async with connect(self._address) as channel:
            stub: Any = LoaderServiceStub(channel)
            call = stub.PrepareArtifact(request, timeout=60)
            *_, last = [response async for response in call]
        file: pb.PreparedFile = last.prepared.files[0]
        return file

    async def begun(self) -> None:
        """Returns when it has reached the place at which it is held."""
        while not self._is_held:
            await self._hear()

    async def _hear(self) -> None:
        assert self.process.stdout
        said = (await self.process.stdout.readline()).decode().strip()
        assert said, "it ended"
        if said == "held":
            self._is_held = True
        else:
            self._address = said

    async def heard(self, event: str) -> None:
        """Returns when it has logged such an event."""
        while event not in self._events:
            assert self.process.stderr
            line = await self.process.stderr.readline()
            assert line, f"it ended without {event}"
            self._note(line)

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def end(self) -> list[str]:
        """Asks it to stop; returns the names of the events that it logged."""
        self.process.send_signal(signal.SIGTERM)
        _, logged = await self.process.communicate()
        assert 0 == self.process.returncode, logged.decode()
        for line in logged.splitlines():
            self._note(line)
        return self._events

    def _note(self, line: bytes) -> None:
        if line.startswith(b"{"):
            self._events.append(json.loads(line)["event"])


@contextlib.asynccontextmanager
async def child_loader(
    store: Path | str, weights_dir: Path, *, held_at: str = "", **more: Any
) -> AsyncIterator[ChildLoader]:
    """Runs a loader on a tmpfs.

    Args:
        held_at: ``module:Class:method``, before which it stops for ever; with ``=N`` only where N is the first argument.
        more: Settings.
    """
    arguments = (str(store), str(weights_dir), held_at, json.dumps(more, default=str))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE, stderr=PIPE
    )
    try:
        loader = ChildLoader(process)
        await loader.started()
        yield loader
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
