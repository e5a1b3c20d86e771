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
from typing import Any

from halogen.v1 import loader_pb2 as pb
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from services.common.rpc.client import connect

PROGRAM = """
import asyncio, sys, threading
from services.common.lifecycle import Stop
from services.common.registry.memory import MemoryStore
from services.common.telemetry.logs import configure_logs
from services.loader import block_reader
from services.loader.config import LoaderConfig
from services.loader.serve import serve

store, weights_dir, held_block = sys.argv[1:]
read_block = block_reader.BlockReader._read_block

def read_or_hold(self, index, *rest):
    if index == int(held_block):
        print("held", flush=True)
        threading.Event().wait()
    read_block(self, index, *rest)

block_reader.BlockReader._read_block = read_or_hold
configure_logs("loader", "info")
config = LoaderConfig(id="child", place="tmpfs", store=store, weights_dir=weights_dir, drain_s=0.1)

async def main():
    stop = Stop()
    stop.listen()
    await serve(config, MemoryStore(), stop, lambda bound: print(bound, flush=True))

asyncio.run(main())
"""


class ChildLoader:
    """A loader in a process of its own."""

    def __init__(self, process: Process, address: str) -> None:
        self.process = process
        self._address = address
        self._events: list[str] = []

    async def prepare(self, artifact_id: str) -> pb.PreparedFile:
        """Where the weights are."""
        async with connect(self._address) as channel:
            stub: Any = LoaderServiceStub(channel)
            call = stub.PrepareArtifact(pb.PrepareArtifactRequest(artifact_id=artifact_id), timeout=60)
            *_, last = [response async for response in call]
        file: pb.PreparedFile = last.prepared.files[0]
        return file

    async def begun(self) -> None:
        """Returns when it has reached the block at which it is held."""
        assert self.process.stdout
        assert b"held\n" == await self.process.stdout.readline()

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
async def child_loader(store: Path, weights_dir: Path, *, held_block: int = -1) -> AsyncIterator[ChildLoader]:
    """Runs a loader on a tmpfs; it stops for ever before the block `held_block`, if there is such a one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(store), str(weights_dir), str(held_block), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stdout
        address = (await process.stdout.readline()).decode().strip()
        yield ChildLoader(process, address)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
