"""What asks for a ticket."""

from __future__ import annotations

import dataclasses

from services.common.ids import ArtifactId, RequestId


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TicketRequest:
    """One request's wish for KV memory; told from others by identity, for request ids may repeat.

    Attributes:
        prompt_tokens: At least 1.
        max_tokens: Most tokens to generate, at least 1.
    """

    request_id: RequestId
    artifact_id: ArtifactId
    prompt_tokens: int
    max_tokens: int
