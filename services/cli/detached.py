"""`halogen up --detach`: the system under a supervisor of its own, which stays only once the system has answered.

Launcher and supervisor hold the two ends of a socket while the system starts. The supervisor tells its addresses, and
what does not start; the launcher says "settled" when the first question is answered. Whichever end closes before,
however its process died, the system ends with it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from typing import Final

from services.cli.console import CommandError, err
from services.cli.home import Home
from services.cli.run_state import Addresses
from services.cli.up import Plan, introduce, running_stack, stop_signal, unless
from services.common.own_python import module_command

_SETTLED: Final = b"settled\n"


def serve(home: Home, plan: Plan) -> None:
    """Starts the supervisor, introduces the model, returns; on failure nothing is left running.

    Raises:
        CommandError: It does not start, or does not answer.
    """
    ours, theirs = socket.socketpair()
    command = [*module_command("services.cli"), "supervise"]
    told = ["--home", str(home.root), "--store", home.loaders_store, "--link", str(theirs.fileno())]
    with theirs, (home.logs / "up.log").open("wb") as log:
        subprocess.Popen(
            [*command, *told],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
    asyncio.run(_launch(ours, home, plan))


async def _launch(link: socket.socket, home: Home, plan: Plan) -> None:
    asked = stop_signal()
    reader, writer = await asyncio.open_unix_connection(sock=link)
    try:
        line = await reader.readline()
        if not line:
            raise CommandError(f"the supervisor does not start: {_last_words(home)}")
        addresses = Addresses.model_validate_json(line)
        await unless(asked, _failure(reader), introduce(addresses, home, plan))
        if asked.is_set():
            raise CommandError("stopped before the system had answered")
        writer.write(_SETTLED)
        await writer.drain()
    except BaseException:
        writer.write_eof()
        await reader.read()  # to the end: the supervisor has stopped everything
        raise
    finally:
        writer.close()


async def _failure(reader: asyncio.StreamReader) -> None:
    """Raises what the supervisor has to say after its addresses; returns never."""
    line = await reader.readline()
    raise CommandError(json.loads(line)["failed"] if line else "the supervisor died; look at up.log")


def _last_words(home: Home) -> str:
    lines = (home.logs / "up.log").read_text().strip().splitlines() or ["it says nothing"]
    return lines[-1].removeprefix("halogen: ")


def supervise(home: Home, link: int) -> None:
    """Runs the system until it is told to stop, or its launcher leaves before the system has answered."""
    asyncio.run(_supervise(home, socket.socket(fileno=link)))


async def _supervise(home: Home, link: socket.socket) -> None:
    asked = stop_signal()
    reader, writer = await asyncio.open_unix_connection(sock=link)
    async with running_stack(home) as stack:
        writer.write(stack.addresses.model_dump_json().encode() + b"\n")
        try:
            await unless(asked, stack.failed(), _settled(reader))
        except CommandError as failure:
            writer.write(json.dumps({"failed": str(failure)}).encode() + b"\n")
            err.print(str(failure))
        else:
            await asked.wait()


async def _settled(reader: asyncio.StreamReader) -> None:
    if await reader.readline() != _SETTLED:
        raise CommandError("the launcher left before the system had answered")
