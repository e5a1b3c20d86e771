"""Client processes to be killed: ``python -m tests.scenarios.doomed_clients GATEWAY COUNT``.

Each asks for a long answer under the id ``kN``, prints its process id once the first chunk is there, and reads on.
"""

from __future__ import annotations

import asyncio
import os
import sys

from services.common.client import Client


async def ask(gateway: str, name: str) -> None:
    async with Client(gateway) as client:
        answer = aiter(client.generate([7] * 9, request_id=name, max_tokens=1_500, ignore_eos=True))
        await anext(answer)
        os.write(1, f"{os.getpid()}\n".encode())  # in one piece, whatever the others write
        async for _ in answer:
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    clients = range(int(sys.argv[2]))
    for number in clients:
        if os.fork() == 0:
            asyncio.run(ask(sys.argv[1], f"k{number}"))
            os._exit(0)
    for _ in clients:
        os.wait()
