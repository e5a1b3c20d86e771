"""What asks for a ticket."""

from __future__ import annotations

import dataclasses

from services.common.ids import ArtifactId, RequestId, TicketId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TicketRequest:
    """One request's wish for KV memory; told from others by identity, for request ids may repeat.

    Attributes:
        prompt_tokens: At least 1.
        max_tokens: Most tokens to generate, at least 1.
        ticket_id: Of the ticket to be made; a caller that chose it can release what it never heard of.
    """

    request_id: RequestId
    artifact_id: ArtifactId
    prompt_tokens: int
    max_tokens: int
    ticket_id: TicketId
