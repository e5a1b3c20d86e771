"""What requests want of memory."""

from __future__ import annotations

from typing import NamedTuple, Self

from services.engine.engine import Engine


class Demand(NamedTuple):
    """Bytes of keys and values.

    Attributes:
        promised_bytes: By tickets: what schedulers count as gone.
        waiting_bytes: Somebody waits for them, beside what is in use.
        alone_bytes: What one of the requests may come to need by itself.
        swap_bytes: What requests that are set back may yet take outside of the arena.
    """

    promised_bytes: int = 0
    waiting_bytes: int = 0
    alone_bytes: int = 0
    swap_bytes: int = 0

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """As it stands; any thread may ask."""
        loans = tuple(engine.desk.loans.values())
        return cls(
            promised_bytes=sum(ticket.reserved_bytes for ticket in engine.occupancy.tickets),
            waiting_bytes=engine.desk.waiting_bytes,
            alone_bytes=max((loan.worst_bytes for loan in loans), default=0),
            swap_bytes=engine.desk.swap.total_bytes - sum(loan.outside_bytes for loan in loans),
        )
