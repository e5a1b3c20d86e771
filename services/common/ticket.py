"""Tickets: what one promises, and the MAC that proves who promised it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import stat
import struct
from pathlib import Path
from typing import Final

from services.common.errors import PermissionDenied
from services.common.ids import ArtifactId, InstanceId, TicketId

_DOMAIN: Final = b"halogen ticket v1"
MIN_KEY_BYTES: Final = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A single-use right to KV bytes on one engine instance for one artifact."""

    id: TicketId
    engine_instance_id: InstanceId
    artifact_id: ArtifactId
    reserved_bytes: int
    term: int
    expire_time_ns: int  # Unix time


class TicketSigner:
    """Signs and checks tickets with a key that schedulers and engines share (HMAC-SHA256, RFC 2104).

    Args:
        key: At least 32 random bytes.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"the ticket key has {len(key)} bytes; give it at least {MIN_KEY_BYTES}")
        self._key = key

    @classmethod
    def from_file(cls, path: Path) -> TicketSigner:
        """Reads the key; refuses a file that others can read.

        Raises:
            ValueError: The file is missing, too short, or open to everybody.
        """
        if not path.is_file():
            raise ValueError(
                f"--ticket-key-file {path}: no such file; make one with: head -c 32 /dev/urandom"
            )
        if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ValueError(f"--ticket-key-file {path}: readable by everybody; run chmod 600 on it")
        return cls(path.read_bytes())

    def sign(self, ticket: Ticket) -> bytes:
        return hmac.digest(self._key, _canonical(ticket), hashlib.sha256)

    def check(self, ticket: Ticket, mac: bytes) -> None:
        """Raises PermissionDenied unless `mac` is this key's over exactly this ticket."""
        if not hmac.compare_digest(self.sign(ticket), mac):
            raise PermissionDenied(
                "the ticket was not signed by this system's scheduler; ask SchedulerService for one",
                reason="TICKET_FORGED",
            )


def _canonical(ticket: Ticket) -> bytes:
    """Every field length-prefixed, so that no two tickets share their bytes."""
    fields = (_DOMAIN, ticket.id.encode(), ticket.engine_instance_id.encode(), ticket.artifact_id.encode())
    texts = b"".join(struct.pack("<I", len(field)) + field for field in fields)
    return texts + struct.pack("<QQQ", ticket.reserved_bytes, ticket.term, ticket.expire_time_ns)
