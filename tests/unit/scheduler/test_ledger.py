"""The ledger of promised bytes: conserved at every step, whatever the engine and the callers do."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.ids import TicketId
from services.scheduler.ledger import Ledger, Promise, TicketState
from services.scheduler.occupancy import Delta, LiveTicket
from tests.unit.scheduler.builders import live

ARENA = 1000
T = TicketId("t")


def granted(**changes: int) -> Ledger:
    """A ledger with one ticket of 400 bytes, granted until 100."""
    ledger = Ledger(ARENA)
    values = {"reserved_bytes": 400, "prompt_tokens": 10, "expire_time_ns": 100} | changes
    ledger.grant(T, **values)
    return ledger


def test_a_grant_counts_until_it_is_closed() -> None:
    """Bytes and unstarted tokens are promised by the grant and free after the close."""
    ledger = granted()
    assert (400, 10) == (ledger.promised_bytes, ledger.unstarted_tokens)
    assert ledger.can_grant(600)
    assert not ledger.can_grant(601)
    assert ledger.close(T)
    assert (0, 0, 400) == (ledger.promised_bytes, ledger.unstarted_tokens, ledger.peak_bytes)


def test_what_was_granted_stands_when_the_arena_shrinks() -> None:
    """Nothing new is promised until there is room again; in a larger arena there is at once.

    Fault injection: turns red when check holds what was granted before against the arena of now.
    """
    ledger = granted()
    ledger.resize(300)
    ledger.check()
    assert (400, 4 / 3) == (ledger.promised_bytes, ledger.occupancy)
    assert not ledger.can_grant(1)
    ledger.resize(500)
    assert ledger.can_grant(100)
    assert not ledger.can_grant(101)
    ledger.check()


def test_closing_twice_is_no_error() -> None:
    """The second close finds nothing."""
    ledger = granted()
    ledger.close(T)
    assert not ledger.close(T)
    ledger.check()


def test_a_redeemed_ticket_is_unstarted_until_its_prefill_begins() -> None:
    """Redeeming changes no sum; the first chunk takes its tokens off the unstarted."""
    ledger = granted()
    ledger.report(live(T, 4))
    assert (400, 10) == (ledger.promised_bytes, ledger.unstarted_tokens)
    ledger.report(live(T, 4, started=True))
    assert (400, 0) == (ledger.promised_bytes, ledger.unstarted_tokens)


def test_only_unredeemed_tickets_expire() -> None:
    """A ticket expires at its time, not before, and not once the engine has it."""
    ledger = granted()
    ledger.grant(TicketId("u"), reserved_bytes=100, prompt_tokens=1, expire_time_ns=100)
    ledger.report(live(T, 4))
    first = ledger.next_expiry_ns
    assert () == ledger.expire(99)
    assert ("u",) == ledger.expire(100)
    assert (100, None) == (first, ledger.next_expiry_ns)
    assert 400 == ledger.promised_bytes


def test_a_release_takes_back_only_what_was_not_redeemed() -> None:
    """What the engine has is the engine's to close; a second release is no error."""
    ledger = granted()
    ledger.report(live(T, 4))
    assert not ledger.release(T)
    assert 400 == ledger.promised_bytes
    other = granted()
    assert other.release(T)
    assert not other.release(T)
    assert 0 == other.promised_bytes


def test_a_ticket_redeemed_after_its_expiry_is_adopted() -> None:
    """The engine has the last word: what it took is promised again."""
    ledger = granted()
    ledger.expire(100)
    ledger.report(live(T, 4))
    assert 400 == ledger.promised_bytes
    assert ledger.promises[T].adopted


def test_a_snapshot_replaces_all_but_unredeemed_grants() -> None:
    """After a reconnect: tickets gone meanwhile are closed, new ones adopted, fresh grants kept."""
    ledger = granted()
    ledger.grant(TicketId("gone"), reserved_bytes=100, prompt_tokens=1, expire_time_ns=100)
    ledger.report(live("gone", 1))
    ledger.rebuild(ARENA, [live("new", 2, started=True)])
    states = {ticket_id: promise.state for ticket_id, promise in ledger.promises.items()}
    assert {"t": TicketState.GRANTED, "new": TicketState.PREFILLING} == states
    assert (600, 10) == (ledger.promised_bytes, ledger.unstarted_tokens)


def test_a_report_that_goes_backwards_is_an_error() -> None:
    """A prompt once begun cannot be untouched: the stream is to be opened anew."""
    ledger = granted()
    ledger.report(live(T, 4, started=True))
    with pytest.raises(ValueError, match="no move from prefilling to redeemed"):
        ledger.report(live(T, 4))
    ledger.check()


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (TicketState.GRANTED, {TicketState.REDEEMED, TicketState.PREFILLING, TicketState.CLOSED}),
        (TicketState.REDEEMED, {TicketState.PREFILLING, TicketState.CLOSED}),
        (TicketState.PREFILLING, {TicketState.CLOSED}),
        (TicketState.CLOSED, set()),
    ],
)
def test_a_ticket_moves_forward_only(state: TicketState, allowed: set[TicketState]) -> None:
    """Every move that is not in the table is refused."""
    promise = Promise(id=T, reserved_bytes=1, prompt_tokens=1, state=state)
    for target in TicketState:
        if target in allowed:
            assert target is promise.advance(target).state
        else:
            with pytest.raises(ValueError, match="no move"):
                promise.advance(target)


class LedgerBesideEngine(RuleBasedStateMachine):
    """A scheduler's ledger and an engine that has the last word, joined by a stream that is late and breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.count = 0
        self.ledger = Ledger(ARENA)
        self.tickets: dict[TicketId, LiveTicket] = {}  # every ticket ever granted and not yet redeemed
        self.engine: dict[TicketId, LiveTicket] = {}
        self.stream: list[Delta] = []

    @rule(reserved_bytes=st.integers(1, 600), prompt_tokens=st.integers(1, 50), ttl=st.integers(1, 20))
    def grant(self, reserved_bytes: int, prompt_tokens: int, ttl: int) -> None:
        if not self.ledger.can_grant(reserved_bytes):
            return
        self.count += 1
        ticket = LiveTicket(
            id=TicketId(f"t{self.count}"),
            reserved_bytes=reserved_bytes,
            prompt_tokens=prompt_tokens,
            prefill_started=False,
        )
        self.ledger.grant(
            ticket.id,
            reserved_bytes=reserved_bytes,
            prompt_tokens=prompt_tokens,
            expire_time_ns=self.now + ttl,
        )
        self.tickets[ticket.id] = ticket

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def redeem(self, data: st.DataObject) -> None:
        """In time or late: the engine takes it if its own arena has the room."""
        ticket = self.tickets.pop(data.draw(st.sampled_from(sorted(self.tickets))))
        if sum(each.reserved_bytes for each in self.engine.values()) + ticket.reserved_bytes <= ARENA:
            self.engine[ticket.id] = ticket
            self.stream.append(Delta(tickets=(ticket,)))

    @precondition(lambda self: self.engine)
    @rule(data=st.data())
    def begin_prefill(self, data: st.DataObject) -> None:
        ticket = self.engine[data.draw(st.sampled_from(sorted(self.engine)))]
        started = LiveTicket(
            id=ticket.id,
            reserved_bytes=ticket.reserved_bytes,
            prompt_tokens=ticket.prompt_tokens,
            prefill_started=True,
        )
        self.engine[ticket.id] = started
        self.stream.append(Delta(tickets=(started,)))

    @precondition(lambda self: self.engine)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ticket_id = data.draw(st.sampled_from(sorted(self.engine)))
        del self.engine[ticket_id]
        self.stream.append(Delta(closed=(ticket_id,)))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        ticket_id = data.draw(st.sampled_from(sorted(self.tickets)))
        del self.tickets[ticket_id]
        self.ledger.release(ticket_id)

    @rule(passed=st.integers(0, 10))
    def pass_time(self, passed: int) -> None:
        self.now += passed
        self.ledger.expire(self.now)

    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        for delta in self.stream[:count]:
            for ticket in delta.tickets:
                self.ledger.report(ticket)
            for ticket_id in delta.closed:
                self.ledger.close(ticket_id)
        del self.stream[:count]

    @rule()
    def reconnect(self) -> None:
        self.stream.clear()
        self.ledger.rebuild(ARENA, self.engine.values())

    @rule()
    def restart_scheduler(self) -> None:
        """A new scheduler knows nothing but the snapshot."""
        self.stream.clear()
        self.ledger = Ledger()
        self.ledger.rebuild(ARENA, self.engine.values())
        assert self.engine.keys() == self.ledger.promises.keys()

    @invariant()
    def is_conserved(self) -> None:
        self.ledger.check()

    @invariant()
    def agrees_with_the_engine_once_all_is_delivered(self) -> None:
        """Beside grants that nobody has shown yet, or not in time, the ledger is the engine's own list."""
        if self.stream:
            return
        lives = {p.id: p for p in self.ledger.promises.values() if p.state is not TicketState.GRANTED}
        engine = {ticket.id: ticket.reserved_bytes for ticket in self.engine.values()}
        assert engine == {promise.id: promise.reserved_bytes for promise in lives.values()}
        unstarted = sum(ticket.prompt_tokens for ticket in self.engine.values() if not ticket.prefill_started)
        assert unstarted == sum(promise.prompt_tokens for promise in lives.values() if promise.is_unstarted)

    def teardown(self) -> None:
        """When all streams have ended and all time has passed, nothing is promised."""
        for ticket_id in list(self.engine):
            self.stream.append(Delta(closed=(ticket_id,)))
        self.deliver(len(self.stream))
        self.ledger.expire(self.now + 1000)
        assert (0, 0) == (self.ledger.promised_bytes, self.ledger.unstarted_tokens)


LedgerBesideEngine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLedgerBesideEngine = LedgerBesideEngine.TestCase
