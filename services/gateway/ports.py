"""What a completion needs from the scheduler and from engines, without the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from services.common.completion import FinishReason, Sampling
from services.common.ids import ArtifactId, ProcessId, RequestId, TicketId
from services.common.ticket import Ticket
from services.gateway.routes import Route


class Grant(NamedTuple):
    """A ticket, its MAC, and the engine that it is for."""

    ticket: Ticket
    mac: bytes
    engine_id: ProcessId
    engine_address: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """A completion as scheduler and engine know it: token ids of one artifact's vocabulary.

    Attributes:
        tenant: Whose it is; empty where callers are not asked.
        route: Why it is asked of this artifact.
    """

    request_id: RequestId
    route: Route
    prompt_token_ids: list[int]
    sampling: Sampling
    cache_salt: bytes = b""
    tenant: str = ""

    @property
    def artifact_id(self) -> ArtifactId:
        return self.route.artifact_id


class EngineMessage(NamedTuple):
    """What one or more engine steps produced; in the first and the last it names itself, its artifact, cached tokens.

    Attributes:
        logprobs: Of every one of `token_ids`, where they were asked for; else none.
    """

    token_ids: tuple[int, ...]
    engine_id: ProcessId
    artifact_id: ArtifactId
    runtime_build: str
    finish_reason: FinishReason | None
    cached_tokens: int = 0
    logprobs: tuple[float, ...] = ()


class Scheduler(Protocol):
    """Every method raises errors of the tree; a timeout is in seconds, None waits for ever."""

    async def grant(self, request: TokenRequest, ticket_id: TicketId, timeout_s: float | None) -> Grant:
        """Waits for the request's turn.

        After a failure, or a cancellation, the ticket may have been granted all the same: release it by its id.
        """
        ...

    async def release(self, ticket_id: TicketId, timeout_s: float) -> None:
        """Returns a ticket that will not be redeemed, granted or not; no error if it was redeemed."""


class Engines(Protocol):
    def generate(
        self, request: TokenRequest, grant: Grant, timeout_s: float | None
    ) -> AbstractAsyncContextManager[AsyncIterator[EngineMessage]]:
        """Redeems the grant. Leaving the scope ends the generation; iterating raises errors of the tree."""
        ...
