"""What one request has of the arena, and what it may still need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from services.common.kv import BLOCK_TOKENS
from services.common.waiting_line import Rank
from services.engine.job import Job
from services.engine.preemption import Standing
from services.engine.prefix_cache import Prefix
from services.engine.reservation import Reservation

Find = Callable[[npt.NDArray[np.int32]], Prefix | None]  # what is there of tokens, pinned


class Terms(NamedTuple):
    """What a request comes with.

    Attributes:
        block_bytes: Size of its model's blocks.
        start_blocks: What it is lent at first, with what is there of its prompt.
        promised_bytes: By its ticket; 0 without one.
        find: Looks for what is there of its tokens.
    """

    block_bytes: int
    start_blocks: int
    promised_bytes: int
    find: Find


class KvUse(NamedTuple):
    """How well memory is used that requests have; what kept pages share counts for each of them.

    Attributes:
        stored_bytes: For tokens whose keys and values are stored.
        taken_bytes: In blocks that hold any of these.
        lent_bytes: In all blocks that they have.
    """

    stored_bytes: int = 0
    taken_bytes: int = 0
    lent_bytes: int = 0


class Loan:
    """A request's memory: lent, grown, given back, and lent again.

    Args:
        job: The request.
        terms: What it comes with.
        age: When it came, counted.

    Attributes:
        preemptions: How many times it was set back.
        is_leaving: It is told to give back its memory, and has not done so yet.
        is_taken_up: Its sequence knows of the memory that it has; until then its table is of what it had before.
        swap_bytes: What it has outside of the arena.
        cached_tokens: How many tokens of its prompt were there when it began.
        refused_room: The bytes that there were when it was last lent nothing, while it waits; None before.
    """

    def __init__(self, job: Job, terms: Terms, age: int) -> None:
        self.job = job
        self.block_bytes = terms.block_bytes
        self.age = age
        self.preemptions = 0
        self.is_leaving = False
        self.is_taken_up = False
        self.swap_bytes = 0
        self.cached_tokens = 0
        self.refused_room: int | None = None
        self._terms = terms
        self._lent_blocks = 0
        self._prefix: Prefix | None = None
        self._reservation: Reservation | None = None
        self._resources = contextlib.ExitStack()

    @property
    def rank(self) -> Rank:
        """Where it stands among those that wait for memory: by age, and what nobody waits for behind all others."""
        return self.job.is_background, self.age

    @property
    def has_memory(self) -> bool:
        return self._reservation is not None

    @property
    def reserved_bytes(self) -> int:
        """Its own blocks, without the pages that are made of them."""
        return self._reservation.total_bytes if self._reservation else 0

    @property
    def use(self) -> KvUse:
        if not self.has_memory:
            return KvUse()
        sequence = self.job.sequence
        return KvUse(
            sequence.computed * self.block_bytes // BLOCK_TOKENS,
            len(sequence.table) * self.block_bytes,
            self._lent_blocks * self.block_bytes,
        )

    @property
    def outside_bytes(self) -> int:
        """What of `swap_bytes` is there for certain: neither about to be copied nor about to go; to be asked by any thread."""
        return 0 if self.has_memory else self.swap_bytes

    @property
    def ticket_bytes(self) -> int:
        """What its ticket promises; 0 without one."""
        return self._terms.promised_bytes

    @property
    def promised_bytes(self) -> int:
        """What schedulers are to count for it: its ticket's bytes, and more once it has grown beyond them."""
        return self.ticket_bytes and max(self.ticket_bytes, self._lent_blocks * self.block_bytes)

    @property
    def need_blocks(self) -> int:
        """What it is lent when its turn comes, with what is there: all it may need, once it was set back."""
        return self.job.sequence.request.worst_case_blocks if self.preemptions else self._terms.start_blocks

    @property
    def worst_bytes(self) -> int:
        """All that it may need."""
        return self.job.sequence.request.worst_case_blocks * self.block_bytes

    @property
    def need_bytes(self) -> int:
        return self.need_blocks * self.block_bytes

    @property
    def growth_blocks(self) -> int:
        """What it may need beyond what it has."""
        return self.job.sequence.request.worst_case_blocks - self._lent_blocks if self.has_memory else 0

    @property
    def growth_bytes(self) -> int:
        return self.growth_blocks * self.block_bytes

    @property
    def standing(self) -> Standing:
        """Itself as `preemption` sees it."""
        lone_bytes = self._prefix.lone_bytes if self._prefix else 0
        return Standing(
            age=self.age,
            held_bytes=self.reserved_bytes + lone_bytes,
            preemptions=self.preemptions,
            is_background=self.job.is_background,
            is_leaving=self.is_leaving or self.job.ending is not None,
        )

    def find(self) -> Prefix | None:
        """What is there of its tokens, pinned; None where it shares none."""
        return self._terms.find(self.job.sequence.known)

    def lend(self, prefix: Prefix | None, reservation: Reservation, resources: contextlib.ExitStack) -> None:
        """Gives it memory.

        Args:
            prefix: What was found of its tokens, if it shares any.
            reservation: Blocks for the rest of what it is lent.
            resources: Gives both back.
        """
        assert not self.has_memory
        self._prefix, self._reservation, self._resources = prefix, reservation, resources
        self._lent_blocks = reservation.blocks + (len(prefix.blocks) if prefix else 0)
        if prefix and not self.preemptions:
            self.cached_tokens = prefix.tokens
            prefix.begin(len(self.job.sequence.request.prompt))

    def grow(self, blocks: int) -> None:
        """Adds blocks; the pool has said that they are there."""
        assert self._reservation is not None
        self._reservation.grow(blocks)
        self._lent_blocks += blocks

    def keep(self) -> None:
        """Whole pages that are computed may serve others from now on: nothing is written to them again."""
        if self.is_taken_up and self._prefix is not None and self._reservation is not None:
            sequence = self.job.sequence
            self._prefix.add(sequence.stored, sequence.table, self._reservation)

    def give_back(self) -> None:
        """All that it has goes, but for pages that are kept."""
        self._prefix, self._reservation, self.is_taken_up = None, None, False
        self._resources.close()
