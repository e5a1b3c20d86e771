"""Tickets: once, here, signed, and from the leader of the day."""

from __future__ import annotations

import dataclasses

import pytest

from services.common.errors import PermissionDenied, PreconditionFailed
from services.common.ids import ArtifactId, InstanceId, TicketId
from services.common.ticket import Ticket, TicketSigner
from services.engine.ticket_gate import LATEST_NS, TicketGate

SIGNER = TicketSigner(b"k" * 32)
TICKET = Ticket(
    id=TicketId("t"),
    engine_instance_id=InstanceId("engine-1"),
    artifact_id=ArtifactId("a" * 64),
    reserved_bytes=640,
    term=1,
    expire_time_ns=1_000,
)


def gate() -> TicketGate:
    return TicketGate(InstanceId("engine-1"), SIGNER)


def redeem(at: TicketGate, now_ns: int = 0, **changes: object) -> None:
    ticket = dataclasses.replace(TICKET, **changes)  # type: ignore[arg-type]
    at.redeem(ticket, SIGNER.sign(ticket), now_ns)


def test_a_ticket_comes_in_once() -> None:
    """The second use is refused, however it is dressed."""
    at = gate()
    redeem(at)
    with pytest.raises(PreconditionFailed) as refused:
        redeem(at)
    assert "TICKET_USED" == refused.value.reason


def test_a_ticket_for_another_start_of_the_engine_is_refused() -> None:
    """A restarted engine does not honour what was promised by the one before."""
    with pytest.raises(PreconditionFailed) as refused:
        redeem(gate(), engine_instance_id="engine-0")
    assert "TICKET_FOR_OTHER_INSTANCE" == refused.value.reason


def test_a_ticket_of_an_older_term_is_refused() -> None:
    """Once a new leader has been heard of, the old one's grants are void."""
    at = gate()
    redeem(at, id="new", term=2)
    with pytest.raises(PreconditionFailed) as refused:
        redeem(at, id="old", term=1)
    assert "TICKET_TERM_OVER" == refused.value.reason
    redeem(at, id="newer", term=2)


def test_a_forged_ticket_is_refused() -> None:
    """One changed byte count, and the MAC no longer fits."""
    with pytest.raises(PermissionDenied):
        gate().redeem(dataclasses.replace(TICKET, reserved_bytes=1 << 40), SIGNER.sign(TICKET), 0)


def test_a_late_ticket_may_come_in_but_not_for_ever() -> None:
    """A little past its expiry the arena decides; long past it, the gate does, and forgets the id."""
    at = gate()
    redeem(at, now_ns=TICKET.expire_time_ns + LATEST_NS)
    with pytest.raises(PreconditionFailed) as refused:
        redeem(at, now_ns=TICKET.expire_time_ns + LATEST_NS + 1)
    assert "TICKET_EXPIRED" == refused.value.reason
    assert set() == at._used
