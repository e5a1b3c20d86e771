"""The KV bytes promised on one engine instance, ticket by ticket."""

from __future__ import annotations

import dataclasses
import enum
import heapq
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from services.common.ids import TicketId
from services.scheduler.occupancy import LiveTicket


class TicketState(enum.Enum):
    """The life of a ticket as the scheduler sees it."""

    GRANTED = "granted"  # promised, not yet shown to the engine
    REDEEMED = "redeemed"  # live in the engine, its prompt untouched
    PREFILLING = "prefilling"  # live in the engine, its prompt begun
    CLOSED = "closed"


_MOVES: Final = {
    TicketState.GRANTED: {TicketState.REDEEMED, TicketState.PREFILLING, TicketState.CLOSED},
    TicketState.REDEEMED: {TicketState.PREFILLING, TicketState.CLOSED},
    TicketState.PREFILLING: {TicketState.CLOSED},
    TicketState.CLOSED: set[TicketState](),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One ticket's line in the ledger.

    Attributes:
        granted_bytes: What was promised here; the engine may since have lent it more.
        adopted: Learnt from the engine, not granted here: of another scheduler, or redeemed after expiry.
    """

    id: TicketId
    reserved_bytes: int
    prompt_tokens: int
    state: TicketState
    expire_time_ns: int = 0
    granted_bytes: int = 0
    adopted: bool = False

    @property
    def is_unstarted(self) -> bool:
        return self.state in {TicketState.GRANTED, TicketState.REDEEMED}

    def advance(self, state: TicketState) -> Promise:
        """The same promise in its next state.

        Raises:
            ValueError: There is no such move.
        """
        if state not in _MOVES[self.state]:
            raise ValueError(f"ticket {self.id}: no move from {self.state.value} to {state.value}")
        return dataclasses.replace(self, state=state)


class Ledger:
    """What has been promised: granted here, or live in the engine by its own report.

    Bytes granted here never exceed the arena as it was when they were. The engine's own reports may add tickets that
    were granted before a restart or redeemed after they had expired, and bytes to those that have grown beyond what was
    expected of them; the engine has the last word on those.

    Attributes:
        arena_bytes: The engine's KV memory.
        max_tickets: Most tickets that the engine takes at once; 0 where memory alone bounds them.
        promised_bytes: Sum over the tickets.
        unstarted_tokens: Prompt tokens of tickets whose prefill has not begun.
        peak_bytes: The highest promised_bytes so far.
    """

    def __init__(self, arena_bytes: int = 0, max_tickets: int = 0) -> None:
        self.arena_bytes = arena_bytes
        self.max_tickets = max_tickets
        self.promised_bytes = 0
        self.unstarted_tokens = 0
        self.peak_bytes = 0
        self._most_granted_bytes = arena_bytes
        self._promises: dict[TicketId, Promise] = {}
        self._expiries: list[tuple[int, TicketId]] = []  # a heap; may hold tickets that are GRANTED no more
        self.promises: Mapping[TicketId, Promise] = MappingProxyType(self._promises)

    @property
    def occupancy(self) -> float:
        """Promised bytes over the arena; an arena without bytes is full."""
        return self.promised_bytes / self.arena_bytes if self.arena_bytes else 1.0

    @property
    def next_expiry_ns(self) -> int | None:
        """When the next unredeemed ticket expires, in Unix time."""
        while self._expiries and not self._is_granted(self._expiries[0][1]):
            heapq.heappop(self._expiries)
        return self._expiries[0][0] if self._expiries else None

    def can_grant(self, reserved_bytes: int) -> bool:
        has_place = not self.max_tickets or len(self._promises) < self.max_tickets
        return has_place and self.promised_bytes + reserved_bytes <= self.arena_bytes

    def grant(
        self, ticket_id: TicketId, *, reserved_bytes: int, prompt_tokens: int, expire_time_ns: int
    ) -> None:
        """Promises bytes and a place; `can_grant` has said that they are there."""
        assert self.can_grant(reserved_bytes)
        assert ticket_id not in self._promises
        self._put(
            Promise(
                id=ticket_id,
                reserved_bytes=reserved_bytes,
                prompt_tokens=prompt_tokens,
                state=TicketState.GRANTED,
                expire_time_ns=expire_time_ns,
                granted_bytes=reserved_bytes,
            )
        )
        heapq.heappush(self._expiries, (expire_time_ns, ticket_id))

    def report(self, ticket: LiveTicket) -> None:
        """The engine says that the ticket is live, granted here or not.

        Raises:
            ValueError: The ticket was further before.
        """
        state = TicketState.PREFILLING if ticket.prefill_started else TicketState.REDEEMED
        known = self._promises.get(ticket.id)
        if known is None:
            known = Promise(
                id=ticket.id,
                reserved_bytes=ticket.reserved_bytes,
                prompt_tokens=ticket.prompt_tokens,
                state=state,
                adopted=True,
            )
        elif known.state is not state:
            known = known.advance(state)
        self._put(dataclasses.replace(known, reserved_bytes=ticket.reserved_bytes))

    def close(self, ticket_id: TicketId) -> bool:
        """The engine has closed the ticket; tells whether it was known."""
        return self._drop(ticket_id)

    def release(self, ticket_id: TicketId) -> bool:
        """The holder will not redeem it. What the engine has is the engine's to close."""
        return self._is_granted(ticket_id) and self._drop(ticket_id)

    def expire(self, now_ns: int) -> tuple[TicketId, ...]:
        """Closes the tickets that nobody has redeemed in time, and names them."""
        expired: list[TicketId] = []
        while (due_ns := self.next_expiry_ns) is not None and due_ns <= now_ns:
            _, ticket_id = heapq.heappop(self._expiries)
            self._drop(ticket_id)
            expired.append(ticket_id)
        return tuple(expired)

    def rebuild(self, arena_bytes: int, tickets: Iterable[LiveTicket], max_tickets: int = 0) -> None:
        """Begins anew from the engine's own snapshot; tickets granted here and not yet redeemed stand."""
        self.resize(arena_bytes)
        self.max_tickets = max_tickets
        for ticket_id in [each for each in self._promises if not self._is_granted(each)]:
            self._drop(ticket_id)
        for ticket in tickets:
            self.report(ticket)

    def resize(self, arena_bytes: int) -> None:
        """The engine has more KV memory than before, or less; what was granted stands."""
        self._most_granted_bytes = max(arena_bytes, self._granted_bytes)
        self.arena_bytes = arena_bytes

    def check(self) -> None:
        """Conservation: the sums are the tickets' own, and what was granted here fitted the arena."""
        promises = self._promises.values()
        assert self.promised_bytes == sum(promise.reserved_bytes for promise in promises)
        assert self.unstarted_tokens == sum(
            promise.prompt_tokens for promise in promises if promise.is_unstarted
        )
        assert self.promised_bytes <= self.peak_bytes
        assert self._granted_bytes <= self._most_granted_bytes

    @property
    def _granted_bytes(self) -> int:
        return sum(promise.granted_bytes for promise in self._promises.values() if not promise.adopted)

    def _is_granted(self, ticket_id: TicketId) -> bool:
        promise = self._promises.get(ticket_id)
        return promise is not None and promise.state is TicketState.GRANTED

    def _put(self, promise: Promise) -> None:
        self._drop(promise.id)
        self._promises[promise.id] = promise
        self._count(promise, 1)
        self.peak_bytes = max(self.peak_bytes, self.promised_bytes)

    def _drop(self, ticket_id: TicketId) -> bool:
        promise = self._promises.pop(ticket_id, None)
        if promise is not None:
            self._count(promise, -1)
        return promise is not None

    def _count(self, promise: Promise, sign: int) -> None:
        self.promised_bytes += sign * promise.reserved_bytes
        self.unstarted_tokens += sign * promise.prompt_tokens * promise.is_unstarted
