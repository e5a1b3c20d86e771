"""A server as its callers know it."""

from __future__ import annotations

from typing import NamedTuple

from services.common.rpc.credentials import NO_CREDENTIALS, Credentials


class Endpoint(NamedTuple):
    """Where a server is, and what is shown to it."""

    address: str  # host:port
    credentials: Credentials = NO_CREDENTIALS

    @classmethod
    def of(cls, peer: Peer) -> Endpoint:
        return cls(peer) if isinstance(peer, str) else peer


Peer = Endpoint | str  # an address alone is asked without credentials
