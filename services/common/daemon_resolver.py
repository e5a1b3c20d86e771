"""Host names for HTTP clients, looked up where nobody has to wait for a look-up that hangs."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class DaemonResolver(AbstractResolver):
    """Asks the system's resolver, each time in a thread that ends with the process at the latest.

    Those of an event loop's own resolver are waited for when the loop ends, as long as a name server is silent.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of a host.

        Raises:
            OSError: Its name is not known.
            ValueError: It cannot be a name.
        """
        found: Future[list[ResolveResult]] = Future()

        def look_up() -> None:
            found.set_running_or_notify_cancel()
            try:
                found.set_result(_look_up(host, port, family))
            except (OSError, ValueError) as failure:
                found.set_exception(failure)

        threading.Thread(target=look_up, name="look-up", daemon=True).start()
        return await asyncio.wrap_future(found)

    async def close(self) -> None:
        """Nothing is kept."""


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    """Waits for the name server."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
    return [_result(host, *each) for each in found]


def _result(host: str, family: int, _kind: int, proto: int, _name: str, address: Any) -> ResolveResult:
    number, service = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    return ResolveResult(
        hostname=host, host=number, port=int(service), family=family, proto=proto, flags=_NUMERIC
    )
