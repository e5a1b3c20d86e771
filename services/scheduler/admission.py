"""Who is granted KV memory, and when: queue, ledger, watermark and placement tied together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from services.common.errors import HalogenError, Overloaded
from services.common.ids import ArtifactId, ProcessId
from services.common.registry.records import Serving
from services.common.ticket import Ticket
from services.scheduler.admission_queue import AdmissionQueue
from services.scheduler.fleet import Fleet
from services.scheduler.placement import place
from services.scheduler.queue_pace import QueuePace
from services.scheduler.refusal import RETRY_AFTER_S, not_leader, refusal, too_long
from services.scheduler.request import TicketRequest

_UNHEARD: Final[Mapping[str, Serving]] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What admission may do.

    Attributes:
        unstarted_tokens: Usual bound, for each engine, on prompt tokens granted whose prefill has not begun.
        ticket_ttl_ns: How long a ticket may wait to be redeemed.
        queue_wait_ns: How long a newcomer may have to wait, by how fast those before it go; 0 for any time.
    """

    unstarted_tokens: int
    ticket_ttl_ns: int
    queue_wait_ns: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A ticket for `request`, and where to show it."""

    request: TicketRequest
    ticket: Ticket
    engine_id: ProcessId
    engine_address: str


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A waiting request that no waiting can help any more."""

    request: TicketRequest
    error: HalogenError


class Admission:
    """Decides; whoever calls it brings the time and carries the answers.

    It grants only while it leads, in the term it was given: on standby the fleet is followed, and nobody waits.

    Args:
        fleet: The engines, kept up to date by their owner.
        queue: The requests that wait.
        limits: What it may do.
        serving: Live mirror of serving/, for what gateways are told that have not heard of it.
    """

    def __init__(
        self,
        fleet: Fleet,
        queue: AdmissionQueue,
        limits: Limits,
        serving: Mapping[str, Serving] = _UNHEARD,
    ) -> None:
        self.fleet = fleet
        self.queue = queue
        self._serving = serving
        self._limits = limits
        self._paces: dict[ArtifactId, QueuePace] = {}  # of the lines that there are, and some that were
        self._term: int | None = None

    @property
    def term(self) -> int | None:
        """The leadership term in which tickets are granted; None on standby."""
        return self._term

    def lead(self, term: int) -> None:
        """Grants in `term` from now on; those who wait keep their turns."""
        self._term = term

    def stand_by(self) -> list[Refusal]:
        """Grants no more, and takes out all who wait: the next leader has their turn to give."""
        self._term = None
        refused = [Refusal(request, not_leader()) for request in self.queue]
        return self._take_out(refused)

    def admit(self, request: TicketRequest, now_ns: int) -> Grant | None:
        """Grants at once, or queues and returns None.

        Raises:
            InvalidRequest: It could never be granted.
            Unavailable: No engine has its artifact, or another scheduler leads.
            Overloaded: It would have to wait, and the queue is full, or too long to be through in time.
        """
        if self._term is None:
            raise not_leader()
        if error := refusal(request, tuple(self.fleet), self._serving):
            raise error
        need_tokens = self._need_tokens(request)
        may_pass = self.queue.may_pass(request, need_tokens)
        if may_pass and (grant := self._grant(request, now_ns)):
            self.queue.note_passed(request, need_tokens)
            return grant
        if not self.queue.can_push(request.prompt_tokens):
            raise self._overloaded()
        self._check_wait(request.artifact_id, now_ns, may_pass=may_pass)
        self.queue.push(request, need_tokens)
        return None

    def decide(self, now_ns: int) -> list[Grant]:
        """Grants to whoever's turn it is; who must wait holds up nobody of another artifact, and small ones for a while."""
        grants: list[Grant] = []
        while grant := self._next_grant(now_ns):
            grants.append(grant)
        return grants

    def refuse(self) -> list[Refusal]:
        """Takes out those whom the engines there are now can never serve; to be asked when engines change."""
        engines = tuple(self.fleet)
        errors = ((request, refusal(request, engines, self._serving)) for request in self.queue)
        return self._take_out([Refusal(request, error) for request, error in errors if error])

    def withdraw(self, request: TicketRequest) -> bool:
        """Takes out one that no longer wants to wait; tells whether it did."""
        return self.queue.remove(request)

    def check(self) -> None:
        """Conservation of every ledger and of the queue."""
        for engine in self.fleet:
            engine.ledger.check()
        self.queue.check()

    def _take_out(self, refused: list[Refusal]) -> list[Refusal]:
        for each in refused:
            self.queue.remove(each.request)
        return refused

    def _next_grant(self, now_ns: int) -> Grant | None:
        for request in self.queue.candidates():
            if grant := self._grant(request, now_ns):
                self.queue.serve(request)
                self._paces[request.artifact_id].leave(now_ns)
                return grant
        return None

    def _grant(self, request: TicketRequest, now_ns: int) -> Grant | None:
        assert self._term is not None  # on standby nobody waits
        placement = place(request, self.fleet, self._limits.unstarted_tokens)
        if placement is None:
            return None
        engine = placement.engine
        ticket = Ticket(
            id=request.ticket_id,
            engine_instance_id=engine.instance_id,
            artifact_id=request.artifact_id,
            reserved_bytes=placement.reserved_bytes,
            term=self._term,
            expire_time_ns=now_ns + self._limits.ticket_ttl_ns,
        )
        engine.grant(
            ticket.id,
            reserved_bytes=ticket.reserved_bytes,
            prompt_tokens=request.prompt_tokens,
            expire_time_ns=ticket.expire_time_ns,
        )
        return Grant(request=request, ticket=ticket, engine_id=engine.id, engine_address=engine.address)

    def _need_tokens(self, request: TicketRequest) -> int:
        """Prompt and answer, as far as any engine expects it to go; the worst case where one expects nothing."""
        residents = [engine.resident(request.artifact_id) for engine in self.fleet]
        expected = [each.expected_answer_tokens or request.max_tokens for each in residents if each]
        return request.prompt_tokens + min(request.max_tokens, max(expected, default=request.max_tokens))

    def _check_wait(self, artifact_id: ArtifactId, now_ns: int, *, may_pass: bool) -> None:
        """Raises Overloaded for a newcomer that would wait for too long: for all who wait, or for whoever leaves first."""
        most_ns = self._limits.queue_wait_ns
        if not self.queue.is_waited_for(artifact_id):
            self._paces = {each: pace for each, pace in self._paces.items() if self.queue.is_waited_for(each)}
            self._paces[artifact_id] = QueuePace(now_ns)
        ahead = 0 if may_pass else self.queue.line_length(artifact_id)
        wait_ns = self._paces[artifact_id].expected_ns(ahead, now_ns)
        if 0 < most_ns < wait_ns:
            raise too_long(ahead, wait_ns / 1e9, most_ns / 1e9)

    def _overloaded(self) -> Overloaded:
        queue = self.queue
        return Overloaded(
            f"{len(queue)} requests with {queue.prompt_tokens} prompt tokens are waiting already; try again later",
            reason="QUEUE_FULL",
            metadata={
                "queued_requests": str(len(queue)),
                "queued_prompt_tokens": str(queue.prompt_tokens),
                "max_requests": str(queue.max_requests),
                "max_prompt_tokens": str(queue.max_prompt_tokens),
            },
            retry_after_s=RETRY_AFTER_S,
        )
