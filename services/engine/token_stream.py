"""The tokens of one request on their way to its reader."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Self

from services.common.errors import HalogenError
from services.engine.stepper import FinishReason, Outcome


class Piece(NamedTuple):
    """What has come since the last piece; `finish` in the last one only."""

    token_ids: tuple[int, ...]
    finish: FinishReason | None


class TokenStream:
    """An async iterator of pieces, for one reader, that ends in a finish reason or raises.

    A reader that is behind gets all it missed in one piece, so what waits is bounded by the request's own
    max_tokens.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._outcome: Outcome | None = None
        self._news = asyncio.Event()
        self._is_over = False

    @property
    def has_ended(self) -> bool:
        """Whether the outcome is known, read or not."""
        return self._outcome is not None

    def push(self, token: int) -> None:
        self._tokens.append(token)
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
        tokens, self._tokens = tuple(self._tokens), []
        if isinstance(self._outcome, HalogenError):
            return self._last_before_failure(tokens, self._outcome)
        self._is_over = self._outcome is not None
        return Piece(tokens, self._outcome)

    def _last_before_failure(self, tokens: tuple[int, ...], failure: HalogenError) -> Piece:
        if not tokens:
            self._is_over = True
            raise failure
        self._news.set()
        return Piece(tokens, None)
