"""host:port addresses."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

WILDCARDS = frozenset({"0.0.0.0", "[::]", "::", "*"})  # noqa: S104  # recognised, not bound to


class Address(NamedTuple):
    """Where a server listens or is reached."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads ``host:port`` or ``[v6]:port``; raises ValueError when it is neither."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or int(port) > 65_535:
            raise ValueError(f"{text!r} is not host:port")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"{text!r}: write an IPv6 address as [address]:port")
        return cls(host, int(port))

    @property
    def is_wildcard(self) -> bool:
        return self.host in WILDCARDS

    @property
    def is_loopback(self) -> bool:
        """Whether only this host reaches it."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
