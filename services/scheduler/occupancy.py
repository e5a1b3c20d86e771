"""What an engine tells of its KV memory: first all of it, then what changes."""

from __future__ import annotations

import dataclasses

from services.common.ids import ArtifactId, InstanceId, ProcessId, TicketId
from services.common.registry.records import GenerationState


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveTicket:
    """A ticket that the engine has taken and not yet closed."""

    id: TicketId
    reserved_bytes: int
    prompt_tokens: int
    prefill_started: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """An artifact loaded in the engine, or on its way there; sizes are of its KV memory."""

    artifact_id: ArtifactId
    state: GenerationState
    block_bytes: int
    block_tokens: int
    max_context_tokens: int
    expected_answer_tokens: int = 0  # 0 when nothing is known


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything, as it stands.

    Attributes:
        engine_id: Whose instance it is; empty where an older engine does not say.
        max_tickets: Most that the engine takes at once; 0 where memory alone bounds them.
    """

    engine_id: ProcessId
    engine_instance_id: InstanceId
    arena_bytes: int
    tickets: tuple[LiveTicket, ...]
    residents: tuple[Resident, ...]
    max_tickets: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What has changed since the last message.

    Attributes:
        residents: All there are if one of them did, else None.
        arena_bytes: The engine's KV memory from now on; 0 where it does not say.
    """

    tickets: tuple[LiveTicket, ...] = ()
    closed: tuple[TicketId, ...] = ()
    residents: tuple[Resident, ...] | None = None
    arena_bytes: int = 0
