"""The tokens of one request on their way to its reader."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Self

from services.common.errors import HalogenError
from services.engine.stepper import FinishReason, Outcome
from services.engine.timeline import StepTimes, Timeline


class Piece(NamedTuple):
    """What has come since the last piece; `finish` in the last one only.

    Attributes:
        logprobs: Of every token, where they were asked for; else none.
    """

    token_ids: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[float, ...] = ()


class TokenStream:
    """An async iterator of pieces, for one reader, that ends in a finish reason or raises.

    A reader that is behind gets all it missed in one piece, so what waits is bounded by the request's own
    max_tokens.

    Attributes:
        timeline: When the request entered its stages.
        cached_tokens: How many tokens of its prompt need not be computed.
        read_tokens: How many tokens its reader has taken.
    """

    def __init__(self, timeline: Timeline, cached_tokens: int = 0) -> None:
        self.timeline = timeline
        self.cached_tokens = cached_tokens
        self.read_tokens = 0
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._outcome: Outcome | None = None
        self._news = asyncio.Event()
        self._is_over = False

    @property
    def outcome(self) -> Outcome | None:
        """How it ends, read or not; None as long as it goes on."""
        return self._outcome

    @property
    def has_ended(self) -> bool:
        """Whether the outcome is known."""
        return self._outcome is not None

    @property
    def finish(self) -> FinishReason | None:
        """How it has come to its end, once its reader knows; None too where it failed."""
        return self._outcome if self._is_over and isinstance(self._outcome, FinishReason) else None

    def push(self, token: int, step: StepTimes, logprob: float | None = None) -> None:
        """Takes a token; of one answer all have a logprob or none."""
        if not self.timeline.has_token:
            self.timeline.start_decode(step)
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        self._news.set()

    def end(self, outcome: Outcome) -> None:
        assert self._outcome is None, "a request ends once"
        self._outcome = outcome
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """The next piece; what came before a failure is given before the failure is raised."""
        if self._is_over:
            raise StopAsyncIteration
        await self._news.wait()
        self._news.clear()
        piece = self._take()
        if isinstance(self._outcome, HalogenError):
            return self._last_before_failure(piece, self._outcome)
        self._is_over = self._outcome is not None
        return piece._replace(finish=self._outcome)

    def _take(self) -> Piece:
        """What has come, but for the end."""
        piece = Piece(tuple(self._tokens), None, tuple(self._logprobs))
        self._tokens, self._logprobs = [], []
        self.read_tokens += len(piece.token_ids)
        return piece

    def _last_before_failure(self, piece: Piece, failure: HalogenError) -> Piece:
        if not piece.token_ids:
            self._is_over = True
            raise failure
        self._news.set()
        return piece
