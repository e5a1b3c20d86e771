"""What an answer has produced and its reader has not taken yet."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from services.common.completion import FinishReason

MAX_PENDING_TOKENS: Final = 1_024
MAX_PENDING_CHARS: Final = 1 << 16


class Ending(NamedTuple):
    """How an answer ended, and the stop string that ended it, if one did."""

    reason: FinishReason
    matched_stop: str | None = None


class Batch(NamedTuple):
    """Everything since the last batch; `ending` in the last one only."""

    token_ids: tuple[int, ...]
    text: str
    ending: Ending | None
    logprobs: tuple[float, ...] = ()  # one for each id, or none


class Outbox:
    """Joins what comes while the reader is behind into one batch, and bounds it by making the writer wait.

    The first ending or failure counts; whatever is added after it is dropped.
    """

    def __init__(self, max_pending_tokens: int = MAX_PENDING_TOKENS) -> None:
        self._max_pending_tokens = max_pending_tokens
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._texts: list[str] = []
        self._end: Ending | Exception | None = None
        self._pending_chars = 0
        self._accepted = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def accepted_tokens(self) -> int:
        """Ids added before the end, taken or not."""
        return self._accepted

    def add(self, token_ids: tuple[int, ...], text: str, logprobs: tuple[float, ...] = ()) -> None:
        """Takes ids with their logprobs, one for each or none, and text, which may be behind the ids."""
        if self._end is not None or not (token_ids or text):
            return
        self._token_ids.extend(token_ids)
        self._logprobs.extend(logprobs)
        self._texts.append(text)
        self._pending_chars += len(text)
        self._accepted += len(token_ids)
        self._news.set()
        if len(self._token_ids) >= self._max_pending_tokens or self._pending_chars >= MAX_PENDING_CHARS:
            self._room.clear()

    async def room(self) -> None:
        """Returns when the reader is less than the bound behind."""
        await self._room.wait()

    def end(self, ending: Ending) -> None:
        self._finish(ending)

    def fail(self, failure: Exception) -> None:
        self._finish(failure)

    def abort(self) -> None:
        self._finish(Ending(FinishReason.ABORTED))

    async def take(self) -> Batch:
        """The next batch. After the one with an ending there is none.

        Raises:
            Exception: What the answer failed with, once everything before it has been taken.
        """
        await self._news.wait()
        if isinstance(self._end, Exception) and not self._texts:
            raise self._end
        ending = self._end if isinstance(self._end, Ending) else None
        batch = Batch(tuple(self._token_ids), "".join(self._texts), ending, tuple(self._logprobs))
        self._token_ids.clear()
        self._logprobs.clear()
        self._texts.clear()
        self._pending_chars = 0
        self._room.set()
        if self._end is None:
            self._news.clear()
        return batch

    def _finish(self, end: Ending | Exception) -> None:
        if self._end is None:
            self._end = end
            self._news.set()
