"""Which tickets are live and which generations resident, with a feed of changes for whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

from services.common.errors import Overloaded
from services.common.ids import ArtifactId, TicketId
from services.common.kv import BLOCK_TOKENS
from services.common.registry.records import GenerationState

RETRY_AFTER_S: Final = 0.2  # about the length of a short answer
MAX_PENDING: Final = 10_000  # changes that wait for one watcher before a fresh snapshot is cheaper


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveTicket:
    """A ticket whose request has not ended."""

    id: TicketId
    reserved_bytes: int
    prompt_tokens: int
    prefill_started: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResidentGeneration:
    """A generation as schedulers need to know it; block_bytes is 0 until its model is loaded."""

    artifact_id: ArtifactId
    state: GenerationState
    block_bytes: int
    max_context_tokens: int
    block_tokens: int = BLOCK_TOKENS
    expected_answer_tokens: int = 0  # what memory is promised for at first; 0 for max_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything, as it stands."""

    tickets: tuple[LiveTicket, ...]
    generations: tuple[ResidentGeneration, ...]
    arena_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Delta:
    """What has changed since the last message.

    Attributes:
        generations: All of them if any changed, else None.
        arena_bytes: As it is now if it has changed, else None.
    """

    tickets: tuple[LiveTicket, ...]
    closed: tuple[TicketId, ...]
    generations: tuple[ResidentGeneration, ...] | None
    arena_bytes: int | None = None


class Occupancy:
    """The books; changed on the event loop alone.

    Args:
        max_tickets: Most that may be live at once; 0 where memory alone bounds them.

    Attributes:
        arena_bytes: What schedulers may promise from.
    """

    def __init__(self, max_tickets: int = 0) -> None:
        self.max_tickets = max_tickets
        self.arena_bytes = 0
        self._tickets: dict[TicketId, LiveTicket] = {}
        self._told: tuple[ResidentGeneration, ...] = ()  # without what is expected of them
        self._generations: tuple[ResidentGeneration, ...] = ()
        self._expected: dict[ArtifactId, int] = {}
        self._watchers: set[_Watcher] = set()

    @property
    def tickets(self) -> tuple[LiveTicket, ...]:
        return tuple(self._tickets.values())

    def check_place(self) -> None:
        """Raises Overloaded when no other ticket may be live beside those that are."""
        if 0 < self.max_tickets <= len(self._tickets):
            raise Overloaded(
                f"the engine has {self.max_tickets} requests under way, as many as it takes at once "
                "(--max-concurrent-requests); try again",
                reason="TOO_MANY_REQUESTS",
                retry_after_s=RETRY_AFTER_S,
            )

    def open(self, ticket: LiveTicket) -> None:
        self._set(ticket)

    def start_prefill(self, ticket_id: TicketId) -> None:
        self._set(dataclasses.replace(self._tickets[ticket_id], prefill_started=True))

    def grow(self, ticket_id: TicketId, reserved_bytes: int) -> None:
        """Its request has got more than was promised."""
        ticket = self._tickets[ticket_id]
        if reserved_bytes > ticket.reserved_bytes:
            self._set(dataclasses.replace(ticket, reserved_bytes=reserved_bytes))

    def close(self, ticket_id: TicketId) -> None:
        """The ticket is spent, whether its request ran to an end or was never taken up."""
        self._tickets.pop(ticket_id, None)
        self._tell(lambda watcher: watcher.close(ticket_id))

    def expect(self, artifact_id: ArtifactId, tokens: int) -> None:
        """So many tokens are expected of an answer; 0 when nothing is known (any more)."""
        self._expected[artifact_id] = tokens
        if not tokens:
            del self._expected[artifact_id]
        self.set_generations(self._told)

    def expected(self, artifact_id: ArtifactId) -> int:
        """Tokens that are expected of an answer; 0 when nothing is known."""
        return self._expected.get(artifact_id, 0)

    def set_generations(self, generations: tuple[ResidentGeneration, ...]) -> None:
        self._told = generations
        generations = tuple(
            dataclasses.replace(each, expected_answer_tokens=self.expected(each.artifact_id))
            for each in generations
        )
        if generations != self._generations:
            self._generations = generations
            self._tell(_Watcher.mark_generations)

    def resize(self, arena_bytes: int) -> None:
        if arena_bytes != self.arena_bytes:
            self.arena_bytes = arena_bytes
            self._tell(_Watcher.mark_resized)

    async def watch(self) -> AsyncGenerator[Snapshot | Delta, None]:
        """A snapshot, then every change; changes that a slow watcher has not taken come as one."""
        watcher = _Watcher()
        with self._watching(watcher):
            while True:
                if watcher.is_behind:
                    watcher.reset()
                    yield Snapshot(self.tickets, self._generations, self.arena_bytes)
                else:
                    yield watcher.take(self._generations, self.arena_bytes)
                await watcher.news.wait()

    @contextlib.contextmanager
    def _watching(self, watcher: _Watcher) -> Iterator[None]:
        self._watchers.add(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _set(self, ticket: LiveTicket) -> None:
        self._tickets[ticket.id] = ticket
        self._tell(lambda watcher: watcher.change(ticket))

    def _tell(self, what: Callable[[_Watcher], None]) -> None:
        for watcher in self._watchers:
            what(watcher)
            watcher.news.set()


class _Watcher:
    """What one watcher has not been told yet."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.is_behind = True  # a snapshot is due
        self._changed: dict[TicketId, LiveTicket] = {}
        self._closed: list[TicketId] = []
        self._generations_changed = False
        self._is_resized = False

    def change(self, ticket: LiveTicket) -> None:
        self._changed[ticket.id] = ticket
        self._bound()

    def close(self, ticket_id: TicketId) -> None:
        self._changed.pop(ticket_id, None)
        self._closed.append(ticket_id)
        self._bound()

    def mark_generations(self) -> None:
        self._generations_changed = True

    def mark_resized(self) -> None:
        self._is_resized = True

    def take(self, generations: tuple[ResidentGeneration, ...], arena_bytes: int) -> Delta:
        delta = Delta(
            tuple(self._changed.values()),
            tuple(self._closed),
            generations if self._generations_changed else None,
            arena_bytes if self._is_resized else None,
        )
        self.reset()
        return delta

    def reset(self) -> None:
        self.news.clear()
        self.is_behind = False
        self._changed, self._closed = {}, []
        self._generations_changed = self._is_resized = False

    def _bound(self) -> None:
        if len(self._changed) + len(self._closed) > MAX_PENDING:
            self.reset()
            self.is_behind = True
