"""Requests that wait for a ticket, first come, first served for each artifact."""

from __future__ import annotations

from collections.abc import Container, Iterator

from services.common.ids import ArtifactId
from services.scheduler.request import TicketRequest


class AdmissionQueue:
    """A queue bounded by requests and by their prompt tokens.

    Args:
        max_requests: Most requests that may wait.
        max_prompt_tokens: Most prompt tokens that may wait, except that a lone request always may.

    Attributes:
        prompt_tokens: Of all that wait.
        peak_requests: The longest the queue has been.
    """

    def __init__(self, *, max_requests: int, max_prompt_tokens: int) -> None:
        self.max_requests = max_requests
        self.max_prompt_tokens = max_prompt_tokens
        self.prompt_tokens = 0
        self.peak_requests = 0
        self._arrivals = 0
        self._lines: dict[ArtifactId, dict[TicketRequest, int]] = {}  # request to arrival, in order

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[TicketRequest]:
        for line in self._lines.values():
            yield from line

    def __contains__(self, request: TicketRequest) -> bool:
        return request in self._lines.get(request.artifact_id, ())

    def is_waited_for(self, artifact_id: ArtifactId) -> bool:
        return artifact_id in self._lines

    def line_length(self, artifact_id: ArtifactId) -> int:
        """How many wait for the artifact."""
        return len(self._lines.get(artifact_id, ()))

    def can_push(self, prompt_tokens: int) -> bool:
        fits = self.prompt_tokens + prompt_tokens <= self.max_prompt_tokens
        return len(self) < self.max_requests and (fits or len(self) == 0)

    def push(self, request: TicketRequest) -> None:
        """Queues the request; `can_push` has said that there is room."""
        assert self.can_push(request.prompt_tokens)
        self._arrivals += 1
        self._lines.setdefault(request.artifact_id, {})[request] = self._arrivals
        self.prompt_tokens += request.prompt_tokens
        self.peak_requests = max(self.peak_requests, len(self))

    def remove(self, request: TicketRequest) -> bool:
        """Takes the request out, wherever it stands; tells whether it was there."""
        if request not in self:
            return False
        line = self._lines[request.artifact_id]
        del line[request]
        if not line:
            del self._lines[request.artifact_id]
        self.prompt_tokens -= request.prompt_tokens
        return True

    def head(self, passed: Container[ArtifactId] = ()) -> TicketRequest | None:
        """The earliest of the artifacts' first requests, those of `passed` artifacts left out."""
        heads = [next(iter(line.items())) for artifact, line in self._lines.items() if artifact not in passed]
        return min(heads, key=lambda head: head[1])[0] if heads else None

    def check(self) -> None:
        """The counters are the requests' own."""
        assert self.prompt_tokens == sum(request.prompt_tokens for request in self)
        assert len(self) <= self.peak_requests
        assert all(self._lines.values())
