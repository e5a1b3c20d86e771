"""Where requests get the arena's memory: as much as they are expected to need, then more, from whoever came later."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import structlog

from services.common.errors import InvalidRequest, Overloaded
from services.common.kv import BLOCK_TOKENS
from services.common.watermark import Bounds, Level, Watermark
from services.engine.block_pool import BlockPool
from services.engine.costs import Costs
from services.engine.extent import growth
from services.engine.job import ComeBack, Job, SetBack
from services.engine.loan import KvUse, Loan, Terms
from services.engine.memory_queue import MemoryQueue
from services.engine.occupancy import RETRY_AFTER_S
from services.engine.preemption import MOST_PREEMPTIONS, Memory, Way, victims
from services.engine.sequence import Phase
from services.engine.step_loop import StepLoop
from services.engine.swap_space import SwapSpace

BOUNDS: Final = Bounds(soft=0.75, hard=0.90, soft_release=0.70, hard_release=0.85)
GROW_BELOW_TOKENS: Final = 16  # of room: steps enough for the blocks to come in time
SET_BACK_BELOW_TOKENS: Final = 2  # of room: until then others may end by themselves

log = structlog.get_logger()


class KvDesk:
    """Lends one arena's memory; told what becomes of requests, it orders the step thread to set them back.

    The books are kept on the event loop alone. The step thread does what is ordered before its next step, and until
    it has said so the memory is its own.

    Args:
        pool: The arena's.
        steps: Takes orders for the step thread.
        costs: Of setting requests back.
        swap: Host memory for what is copied out.
        chunk_tokens: Most tokens of prompts in one step.

    Attributes:
        loans: Everyone's, in order of age.
        preemptions: Orders that were carried out, by way.
        swap: As above.
        on_growth: Told of everyone that has got more; set by the owner.
    """

    on_growth: Callable[[Loan], None]

    def __init__(
        self, pool: BlockPool, steps: StepLoop, costs: Costs, swap: SwapSpace, chunk_tokens: int
    ) -> None:
        self.swap = swap
        self.preemptions: collections.Counter[Way] = collections.Counter()
        self.on_growth = lambda _: None
        self._pool = pool
        self._steps = steps
        self._costs = costs
        self._chunk_blocks = -(-chunk_tokens // BLOCK_TOKENS) + 1
        self._watermark = Watermark(BOUNDS)
        self._ages = 0
        self._loans: dict[Job, Loan] = {}
        self._growing: dict[Job, Loan] = {}  # who may need more than it has
        self._short: dict[Job, Loan] = {}  # who needs it now
        self._parked = MemoryQueue()
        self.loans: Mapping[Job, Loan] = MappingProxyType(self._loans)

    @property
    def parked(self) -> int:
        """How many wait for memory."""
        return len(self._parked)

    @property
    def waiting_bytes(self) -> int:
        """What the first of them needs; to be asked by any thread."""
        return self._parked.waiting_bytes

    @property
    def use(self) -> KvUse:
        """Of all requests together."""
        uses = [loan.use for loan in self._loans.values()]
        return KvUse(*map(sum, zip(*uses, strict=True)))

    @property
    def reserved_bytes(self) -> int:
        """In blocks of requests, without pages."""
        return sum(loan.reserved_bytes for loan in self._loans.values())

    def admit(self, job: Job, terms: Terms) -> Loan:
        """Lends a new request what it is expected to need, or lets it wait, where it was promised.

        Raises:
            InvalidRequest: Its worst case exceeds the whole arena.
            Overloaded: There is no room, and nothing was promised, or more than there is.
        """
        loan = Loan(job, terms, age=self._ages)
        self._check_worst_case(loan)
        if self._parked.may_begin(loan) and self._lend(loan):
            self._parked.note_begun(loan)
        elif not self._may_wait(loan):
            raise Overloaded("the engine's KV memory is full; try again", retry_after_s=RETRY_AFTER_S)
        self._ages += 1
        self._loans[job] = loan
        if not loan.has_memory:
            self._parked.push(loan)
        return loan

    def follow(self, loan: Loan) -> None:
        """It has got a token further."""
        if loan.job in self._growing and loan.job.sequence.room <= GROW_BELOW_TOKENS:
            self._short[loan.job] = loan

    def moved(self, loan: Loan, phase: Phase) -> None:
        """The step thread has carried out an order."""
        if phase is Phase.WAITING:
            loan.is_taken_up = True
            self._take_swap(loan, 0)
            if loan.preemptions:
                log.info("request_resumed", **_told(loan))
            return
        saved = loan.job.saved
        way, blocks = (Way.SWAP, len(saved.blocks)) if saved else (Way.RECOMPUTE, 0)
        self._take_swap(loan, blocks)  # while it has memory, nobody takes that for certain
        loan.keep()
        loan.give_back()
        loan.is_leaving, loan.preemptions = False, loan.preemptions + 1
        self.preemptions[way] += 1
        self._forget_growth(loan)
        self._parked.push(loan)
        log.info("request_preempted", way=way.value, **_told(loan))

    def leave(self, loan: Loan) -> None:
        """It has ended: what it has goes back."""
        job = loan.job
        del self._loans[job]
        if loan in self._parked:
            self._parked.remove(loan)
        self._forget_growth(loan)
        self._take_swap(loan, 0)
        loan.give_back()

    def settle(self, *, is_stuck: bool = False) -> Level:
        """Gives everyone what there is for them by now; what memory allows from here on.

        Args:
            is_stuck: Nothing could be computed. Older ones may have memory and no place in the batch: then the
                youngest of those who are short gives up its own of both.
        """
        for loan in sorted(self._short.values(), key=lambda each: each.age):
            self._help(loan)
        if is_stuck and self._short and not any(loan.is_leaving for loan in self._loans.values()):
            self._set_back(max(self._short.values(), key=lambda each: each.age))
        self._parked.serve(lambda: self._room_bytes, self._lend)
        return self._watermark.observe(self._pressure())

    def check(self) -> None:
        """Raises AssertionError unless the books agree with each other."""
        assert self._growing.keys() | self._short.keys() <= self._loans.keys()
        assert {loan for loan in self._loans.values() if not loan.has_memory} == set(self._parked)
        self._parked.check()
        assert all(loan.preemptions <= MOST_PREEMPTIONS for loan in self._loans.values())
        assert self.swap.used_bytes == sum(loan.swap_bytes for loan in self._loans.values())

    def _check_worst_case(self, loan: Loan) -> None:
        if loan.worst_bytes > self._pool.promisable_bytes:
            raise InvalidRequest(
                f"the request may need {loan.worst_bytes} bytes of KV memory; this engine has "
                f"{self._pool.promisable_bytes}: shorten the prompt or ask for fewer tokens",
                reason="PROMPT_TOO_LARGE",
            )

    def _may_wait(self, loan: Loan) -> bool:
        """What was promised will be there; a late ticket may come after its bytes were promised to others."""
        promised_bytes = sum(each.ticket_bytes for each in self._loans.values())
        return 0 < loan.ticket_bytes <= self._pool.promisable_bytes - promised_bytes

    def _lend(self, loan: Loan) -> bool:
        """Lends what it needs, if it may have it; tells whether it did."""
        with contextlib.ExitStack() as resources, self._pool.lock:
            prefix = loan.find()
            found = resources.enter_context(prefix).blocks if prefix else ()
            blocks = max(0, loan.need_blocks - len(found))
            may_have = self._may_have(loan, blocks * loan.block_bytes)
            if not (may_have and self._pool.can_reserve(loan.block_bytes, blocks)):
                return False
            reservation = resources.enter_context(self._pool.reserve(loan.block_bytes, blocks))
            loan.lend(prefix, reservation, resources.pop_all())
        if loan.growth_blocks:
            self._growing[loan.job] = loan
        if loan.job in self._loans:
            self._steps.order(ComeBack(loan.job, reservation, found))
        else:
            loan.job.sequence.come_back(reservation, found)
            loan.is_taken_up = True
        return True

    def _may_have(self, loan: Loan, need_bytes: int) -> bool:
        memory = Memory(
            total_bytes=self._pool.total_bytes,
            room_bytes=self._room_bytes,
            growth_bytes=self._growth_bytes() + loan.worst_bytes - loan.need_bytes,
            is_used=any(each.has_memory for each in self._loans.values()),
        )
        if loan.preemptions:
            return memory.may_come_back(need_bytes)
        return memory.may_begin(need_bytes, headroom=1 - BOUNDS.hard)

    def _help(self, loan: Loan) -> None:
        """Lets one grow that is short, or sets others back for it once it can store nothing more."""
        if loan in self._parked or loan.is_leaving or self._grow(loan):
            del self._short[loan.job]
        elif loan.job.sequence.room < SET_BACK_BELOW_TOKENS:
            self._make_room(loan)

    def _grow(self, loan: Loan) -> bool:
        for blocks in (_wanted_blocks(loan), 1):
            with self._pool.lock:
                if self._pool.room(loan.block_bytes) >= blocks:
                    loan.grow(blocks)
                    break
        else:
            return False
        if not loan.growth_blocks:
            del self._growing[loan.job]
        self.on_growth(loan)
        self._steps.nudge()
        return True

    def _make_room(self, needy: Loan) -> None:
        missing_bytes = _wanted_blocks(needy) * needy.block_bytes
        others = {loan.age: loan for loan in self._loans.values() if loan.has_memory and loan is not needy}
        for victim in victims(needy.standing, missing_bytes, [loan.standing for loan in others.values()]):
            self._set_back(others[victim.age])

    def _set_back(self, loan: Loan) -> None:
        sequence = loan.job.sequence
        room_blocks = self.swap.room_bytes // loan.block_bytes
        blocks = len(sequence.table) if sequence.has_begun else 0  # else all of it is kept
        way = self._costs.model.cheaper(sequence.computed, blocks * loan.block_bytes, self.swap.room_bytes)
        # The step under way may store one chunk more.
        most_blocks = min(room_blocks, blocks + self._chunk_blocks) if way is Way.SWAP else 0
        self._take_swap(loan, most_blocks)
        loan.is_leaving = True
        self._steps.order(SetBack(loan.job, way, most_blocks))

    def _take_swap(self, loan: Loan, blocks: int) -> None:
        """Has so much outside of the arena, instead of what it had."""
        self.swap.give_back(loan.swap_bytes)
        loan.swap_bytes = blocks * loan.block_bytes
        self.swap.take(loan.swap_bytes)

    @property
    def _room_bytes(self) -> int:
        return self._pool.total_bytes - self._pool.used_bytes

    def _forget_growth(self, loan: Loan) -> None:
        self._growing.pop(loan.job, None)
        self._short.pop(loan.job, None)

    def _growth_bytes(self) -> int:
        return sum(loan.growth_bytes for loan in self._growing.values())

    def _pressure(self) -> float:
        """Occupancy, where those under way may not all find what they may need; else nothing presses."""
        pool = self._pool
        is_sure = self._growth_bytes() <= self._room_bytes
        return 0.0 if is_sure else pool.used_bytes / pool.total_bytes


def _wanted_blocks(loan: Loan) -> int:
    """At a time, where there are as many."""
    return min(loan.growth_blocks, growth(1, loan.worst_bytes // loan.block_bytes))


def _told(loan: Loan) -> dict[str, str | int]:
    sequence = loan.job.sequence
    return {
        "request_id": sequence.request.id,
        "tokens": sequence.length,
        "stored_tokens": sequence.computed,
        "preemptions": loan.preemptions,
    }
