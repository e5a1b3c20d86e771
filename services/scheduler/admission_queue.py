"""Requests that wait for a ticket: for each artifact in order of arrival, but that small ones pass large ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from services.common.ids import ArtifactId
from services.common.waiting_line import Rank, WaitingLine
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
        self._arrived: dict[TicketRequest, int] = {}  # in order
        self._lines: dict[ArtifactId, WaitingLine[TicketRequest]] = {}  # none empty

    def __len__(self) -> int:
        return len(self._arrived)

    def __iter__(self) -> Iterator[TicketRequest]:
        return iter(self._arrived)

    def __contains__(self, request: TicketRequest) -> bool:
        return request in self._arrived

    def is_waited_for(self, artifact_id: ArtifactId) -> bool:
        return artifact_id in self._lines

    def line_length(self, artifact_id: ArtifactId) -> int:
        """How many wait for the artifact."""
        return len(self._lines.get(artifact_id, ()))

    def can_push(self, prompt_tokens: int) -> bool:
        fits = self.prompt_tokens + prompt_tokens <= self.max_prompt_tokens
        return len(self) < self.max_requests and (fits or len(self) == 0)

    def push(self, request: TicketRequest, need_tokens: int) -> None:
        """Queues the request; `can_push` has said that there is room.

        Args:
            request: It.
            need_tokens: What it is expected to need memory for: by that it may pass others, and others it.
        """
        assert self.can_push(request.prompt_tokens)
        line = self._lines.setdefault(request.artifact_id, WaitingLine())
        line.push(request, need_tokens, self._next_rank)
        self._arrived[request] = self._arrivals
        self._arrivals += 1
        self.prompt_tokens += request.prompt_tokens
        self.peak_requests = max(self.peak_requests, len(self))

    def remove(self, request: TicketRequest) -> bool:
        """Takes the request out, wherever it stands; tells whether it was there."""
        if request not in self:
            return False
        self._lines[request.artifact_id].remove(request)
        self._forget(request)
        return True

    def serve(self, request: TicketRequest) -> None:
        """Takes out one of the candidates, for it has its ticket."""
        self._lines[request.artifact_id].serve(request)
        self._forget(request)

    def candidates(self) -> Iterator[TicketRequest]:
        """Who may be next, in order of arrival: of each line its first, and those that may pass all before them."""
        lines = [line.candidates() for line in self._lines.values()]
        return heapq.merge(*lines, key=self._arrived.__getitem__)

    def may_pass(self, request: TicketRequest, need_tokens: int) -> bool:
        """Whether one that has just come may go before all who wait for its artifact, if there are any."""
        line = self._lines.get(request.artifact_id)
        return line is None or line.may_pass(need_tokens, self._next_rank)

    def note_passed(self, request: TicketRequest, need_tokens: int) -> None:
        """It has its ticket before all who wait for its artifact; `may_pass` has said that it may."""
        if line := self._lines.get(request.artifact_id):
            line.note_passed(need_tokens, self._next_rank)

    def check(self) -> None:
        """The counters are the requests' own."""
        assert self.prompt_tokens == sum(request.prompt_tokens for request in self)
        assert len(self) <= self.peak_requests
        assert all(self._lines.values())
        assert sorted(self._arrived.values()) == list(self._arrived.values())
        for line in self._lines.values():
            line.check()

    @property
    def _next_rank(self) -> Rank:
        return 0, self._arrivals

    def _forget(self, request: TicketRequest) -> None:
        if not self._lines[request.artifact_id]:
            del self._lines[request.artifact_id]
        del self._arrived[request]
        self.prompt_tokens -= request.prompt_tokens
