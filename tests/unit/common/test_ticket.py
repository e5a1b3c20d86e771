"""A ticket proves who promised it, field by field."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import PermissionDenied
from services.common.ids import ArtifactId, InstanceId, TicketId
from services.common.ticket import Ticket, TicketSigner

SIGNER = TicketSigner(bytes(range(32)))
TICKET = Ticket(
    id=TicketId("t1"),
    engine_instance_id=InstanceId("e1"),
    artifact_id=ArtifactId("a" * 64),
    reserved_bytes=4096,
    term=1,
    expire_time_ns=7,
)


def test_a_signed_ticket_passes() -> None:
    """The signer's own MAC is accepted."""
    SIGNER.check(TICKET, SIGNER.sign(TICKET))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "t2"},
        {"engine_instance_id": "e2"},
        {"artifact_id": "b" * 64},
        {"reserved_bytes": 8192},
        {"term": 2},
        {"expire_time_ns": 8},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_field_is_a_forgery(change: dict[str, Any]) -> None:
    """Turns red when: _canonical leaves the field out."""
    with pytest.raises(PermissionDenied):
        SIGNER.check(dataclasses.replace(TICKET, **change), SIGNER.sign(TICKET))


def test_another_key_is_a_forgery() -> None:
    """A ticket of another system is worth nothing here."""
    with pytest.raises(PermissionDenied):
        SIGNER.check(TICKET, TicketSigner(bytes(32)).sign(TICKET))


def test_bytes_cannot_move_between_fields() -> None:
    """Texts are length-prefixed: "t1" + "e1" is not "t1e" + "1"."""
    moved = dataclasses.replace(TICKET, id=TicketId("t1e"), engine_instance_id=InstanceId("1"))
    assert SIGNER.sign(TICKET) != SIGNER.sign(moved)


@pytest.mark.parametrize(
    ("content", "mode", "words"), [(b"short", 0o600, "5 bytes"), (bytes(32), 0o644, "chmod")]
)
def test_a_weak_key_file_is_refused(tmp_path: Path, content: bytes, mode: int, words: str) -> None:
    """A key that is short, or open to all, is no key."""
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ValueError, match=words):
        TicketSigner.from_file(path)


def test_a_missing_key_file_says_how_to_make_one(tmp_path: Path) -> None:
    """The message is the remedy."""
    with pytest.raises(ValueError, match="urandom"):
        TicketSigner.from_file(tmp_path / "none")
