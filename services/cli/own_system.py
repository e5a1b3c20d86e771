"""Whether what answers at the chosen addresses is this home's system: between choosing a port and binding it,
somebody else's process may have come first.
"""

from __future__ import annotations

import asyncio
import http.client
import json

from services.cli.console import CommandError
from services.cli.control_client import ControlClient
from services.cli.home import Home
from services.cli.run_state import Addresses
from services.cli.stack import process_id
from services.common.backoff import Backoff

_ANSWER_S = 2.0
_STATUS_S = 10.0


async def check(control: ControlClient, home: Home, addresses: Addresses, patience_s: float) -> None:
    """Returns once etcd and the gateway have answered and are the home's own.

    Raises:
        CommandError: One is another system's, or etcd does not answer within `patience_s` seconds.
        Unavailable: The gateway does not.
    """
    await _check_etcd(addresses.etcd, process_id(home, "etcd"), patience_s)
    await control.connect(patience_s)
    answered_by = (await control.status(_STATUS_S)).answered_by
    _compare("gateway", addresses.gateway, answered_by, process_id(home, "gateway"))


async def _check_etcd(address: str, ours: str, patience_s: float) -> None:
    pause = Backoff()
    try:
        async with asyncio.timeout(patience_s):
            while (name := await asyncio.to_thread(member_name, address)) is None:
                await pause.pause()
    except TimeoutError:
        raise CommandError(f"etcd does not answer at {address}; look at its log: etcd.log") from None
    _compare("etcd", address, name, ours)


def _compare(kind: str, address: str, name: str, ours: str) -> None:
    if name != ours:
        raise CommandError(
            f"at {address} the {kind} of another system answers ({name or 'without a name'}): its port was taken "
            "meanwhile; run this again, and another is chosen"
        )


def member_name(address: str) -> str | None:
    """The name of the only member of the etcd at host:port; None while it does not tell, or is no etcd."""
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_S)
    try:
        connection.request("POST", "/v3/cluster/member/list", "{}")
        answer = json.loads(connection.getresponse().read())
        return str(answer["members"][0]["name"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()
