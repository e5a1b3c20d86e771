"""One start of an engine, as the scheduler knows it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from services.common.ids import ArtifactId, InstanceId, ProcessId, TicketId
from services.common.kv import expected_blocks, worst_case_blocks
from services.common.registry.records import EngineRecord, GenerationState
from services.common.watermark import Bounds, Level, Watermark
from services.scheduler.ledger import Ledger
from services.scheduler.occupancy import Delta, Resident, Snapshot

log = structlog.get_logger()


class Contact(enum.Enum):
    """Whether the engine's own word on its memory is at hand."""

    UNHEARD = "unheard"  # registered, no snapshot yet
    HEARD = "heard"  # its snapshot is in and its changes follow
    SILENT = "silent"  # its stream broke a moment ago
    LOST = "lost"  # it has been silent for too long


_MOVES: Final = {
    Contact.UNHEARD: {Contact.HEARD, Contact.LOST},
    Contact.HEARD: {Contact.SILENT},
    Contact.SILENT: {Contact.HEARD, Contact.LOST},
    Contact.LOST: {Contact.HEARD},
}


class EngineInstance:
    """An engine instance's contact, residents, promised bytes and watermark level.

    Args:
        record: What it has registered.
        bounds: Of its watermark.

    Attributes:
        is_stale: Its lease has ended, and only its stream speaks for it.
    """

    def __init__(self, record: EngineRecord, bounds: Bounds) -> None:
        self.id: ProcessId = record.id
        self.instance_id: InstanceId = record.instance_id
        self.address = record.address
        self.is_stale = False
        self.ledger = Ledger()
        self._contact = Contact.UNHEARD
        self._registered = _active(record)
        self._residents: Mapping[ArtifactId, Resident] = {}
        self._watermark = Watermark(bounds)

    @property
    def contact(self) -> Contact:
        return self._contact

    @property
    def level(self) -> Level:
        return self._watermark.level

    def resident(self, artifact_id: ArtifactId) -> Resident | None:
        """The artifact's sizes if it is ACTIVE here and the engine's word is at hand."""
        found = self._residents.get(artifact_id)
        usable = self._contact is Contact.HEARD and found and found.state is GenerationState.ACTIVE
        return found if usable else None

    def may_serve(self, artifact_id: ArtifactId) -> bool:
        """Whether the artifact is ACTIVE here by the latest word, so that waiting for this engine makes sense."""
        match self._contact:
            case Contact.UNHEARD:
                return artifact_id in self._registered
            case Contact.LOST:
                return False
        found = self._residents.get(artifact_id)
        return found is not None and found.state is GenerationState.ACTIVE

    def is_loading(self, artifact_id: ArtifactId) -> bool:
        """Whether the artifact is on its way to being ACTIVE here."""
        found = self._residents.get(artifact_id)
        return found is not None and found.state.is_loading

    def needed_bytes(self, resident: Resident, prompt_tokens: int, max_tokens: int) -> int:
        """KV bytes of a request's worst case, in whole blocks."""
        return worst_case_blocks(prompt_tokens, max_tokens, resident.block_tokens) * resident.block_bytes

    def promised_bytes(self, resident: Resident, prompt_tokens: int, max_tokens: int) -> int:
        """KV bytes that a ticket promises: of the prompt and the expected answer, in whole blocks."""
        expected = resident.expected_answer_tokens
        blocks = expected_blocks(prompt_tokens, max_tokens, resident.block_tokens, expected)
        return blocks * resident.block_bytes

    def register(self, record: EngineRecord) -> None:
        """Takes over what the instance's record says now."""
        self.address = record.address
        self.is_stale = False
        self._registered = _active(record)

    def advance(self, contact: Contact) -> None:
        """Moves to another contact.

        Raises:
            ValueError: There is no such move.
        """
        if contact not in _MOVES[self._contact]:
            raise ValueError(f"engine {self.id}: no move from {self._contact.value} to {contact.value}")
        names = {"engine_id": self.id, "engine_instance_id": self.instance_id}
        log.info("engine_contact", **names, old=self._contact.value, new=contact.value)
        self._contact = contact

    def begin(self, snapshot: Snapshot) -> None:
        """Takes over the engine's snapshot; tickets may be granted on it from now on."""
        self._settle_residents(snapshot.residents)
        self.ledger.rebuild(snapshot.arena_bytes, snapshot.tickets, snapshot.max_tickets)
        self._observe()
        if self._contact is not Contact.HEARD:
            self.advance(Contact.HEARD)

    def follow(self, delta: Delta) -> None:
        """Takes over what has changed.

        Raises:
            ValueError: It contradicts what the engine said before.
        """
        if delta.residents is not None:
            self._settle_residents(delta.residents)
        if delta.arena_bytes:
            self.ledger.resize(delta.arena_bytes)
        for ticket in delta.tickets:
            self.ledger.report(ticket)
        for ticket_id in delta.closed:
            self.ledger.close(ticket_id)
        self._observe()

    def grant(
        self, ticket_id: TicketId, *, reserved_bytes: int, prompt_tokens: int, expire_time_ns: int
    ) -> None:
        self.ledger.grant(
            ticket_id,
            reserved_bytes=reserved_bytes,
            prompt_tokens=prompt_tokens,
            expire_time_ns=expire_time_ns,
        )
        self._observe()

    def release(self, ticket_id: TicketId) -> bool:
        released = self.ledger.release(ticket_id)
        self._observe()
        return released

    def expire(self, now_ns: int) -> tuple[TicketId, ...]:
        expired = self.ledger.expire(now_ns)
        self._observe()
        return expired

    def _settle_residents(self, residents: Iterable[Resident]) -> None:
        """One entry an artifact: two cohorts may hold the same one, and an ACTIVE one counts."""
        ordered = sorted(residents, key=lambda resident: resident.state is GenerationState.ACTIVE)
        self._residents = {resident.artifact_id: resident for resident in ordered}

    def _observe(self) -> None:
        self._watermark.observe(self.ledger.occupancy)


def _active(record: EngineRecord) -> frozenset[ArtifactId]:
    generations = record.generations
    return frozenset(each.artifact_id for each in generations if each.state is GenerationState.ACTIVE)
