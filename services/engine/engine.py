"""The engine without its wire: token ids in, token ids out, on one arena. Tests and benchmarks use it as it is."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self

import structlog

from services.common.errors import AlreadyExists, Cancelled, HalogenError, InternalError
from services.common.ids import RequestId, TicketId
from services.common.stall import StallTimer
from services.engine.arena import Arena
from services.engine.chunk_pace import BOUND_S
from services.engine.costs import Costs, measured_copy_bytes_per_s
from services.engine.job import Job
from services.engine.kv_desk import KvDesk
from services.engine.lender import Lender, LoadedModel
from services.engine.lending import Lending
from services.engine.load import Load
from services.engine.loan import Loan
from services.engine.occupancy import LiveTicket, Occupancy
from services.engine.prefix_cache import PrefixCache
from services.engine.run import Run
from services.engine.sequence import Sequence, TokenRequest
from services.engine.step_loop import StepLoop
from services.engine.step_tally import StepTally
from services.engine.stepper import Outcome, Stepper, Update, name_of
from services.engine.swap_space import SwapSpace
from services.engine.timeline import StepTimes, Timeline
from services.engine.token_stream import TokenStream

STEP_TIMEOUT_S: Final = 30.0

log = structlog.get_logger()


class Engine:
    """Runs requests on the models of generations; one step loop, one arena, one set of books.

    Args:
        arena: Keys and values of every generation.
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most sequences under way at once.
        check_every_step: Check the arena's books after every step, not only when idle.
        max_step_s: Seconds that a step with decodes may take before the next has fewer tokens of prompts.
        step_timeout_s: How long no step may finish while there is work.
        swap_bytes: Host memory for keys and values of requests that are set back; with 0 they are computed again.
        prefix_cache: Whether keys and values of prompts are kept for those that begin alike.
        max_concurrent_requests: Most of callers' requests at once; 0 where memory alone bounds them.

    Attributes:
        occupancy: Tickets and generations, for schedulers.
        prefixes: The pages that are kept.
        desk: Lends the arena's memory.
        on_stall: Told True when steps have stopped for too long, False when they go on; set by the owner.
        accepted: Requests taken in so far, the engine's own included.
        ended: How many of them have ended, by finish reason or error.
        chunk_tokens: As above.
        max_batch: As above.
    """

    on_stall: Callable[[bool], None]

    def __init__(
        self,
        arena: Arena,
        *,
        chunk_tokens: int,
        max_batch: int,
        check_every_step: bool = False,
        max_step_s: float = BOUND_S,
        step_timeout_s: float = STEP_TIMEOUT_S,
        prefix_cache: bool = True,
        swap_bytes: int = 0,
        max_concurrent_requests: int = 0,
    ) -> None:
        self.arena = arena
        self.occupancy = Occupancy(max_concurrent_requests)
        self.occupancy.resize(arena.pool.promisable_bytes)
        self.prefixes = PrefixCache()
        self.accepted = 0
        self.ended: collections.Counter[str] = collections.Counter()
        self.chunk_tokens = chunk_tokens
        self.max_batch = max_batch
        self._check_every_step = check_every_step
        self._running: set[RequestId] = set()
        self._runs: dict[Job, Run] = {}
        self.on_stall = lambda _: None
        self._is_stalled = False
        self._heartbeat = StallTimer(step_timeout_s, lambda: self._set_stalled(True))
        stepper = Stepper(chunk_tokens=chunk_tokens, max_batch=max_batch, max_step_s=max_step_s)
        self._loop = StepLoop(stepper, self._deliver)
        self._costs = Costs(measured_copy_bytes_per_s())
        self.desk = KvDesk(arena.pool, self._loop, self._costs, SwapSpace(swap_bytes), chunk_tokens)
        self.desk.on_growth = self._tell_growth
        self._lending = Lending(self.desk, self.prefixes if prefix_cache else None, self.occupancy.expect)

    async def __aenter__(self) -> Self:
        await self._loop.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._loop.__aexit__(kind, value, trace)
        self._heartbeat.close()

    @property
    def steps(self) -> int:
        """Steps computed so far."""
        return self._loop.steps

    @property
    def tally(self) -> StepTally:
        """What has been computed so far."""
        return self._loop.tally

    @property
    def is_busy(self) -> bool:
        """Whether any request is under way; to be asked by any thread."""
        return bool(self._runs)

    @property
    def load(self) -> Load:
        """The requests under way, as they stand."""
        return Load.of((job.sequence.phase for job in tuple(self._runs)), self.max_batch)

    @contextlib.asynccontextmanager
    async def run(
        self,
        lender: Lender,
        request: TokenRequest,
        ticket_id: TicketId | None = None,
        promised_bytes: int | None = None,
    ) -> AsyncIterator[TokenStream]:
        """Runs a validated request while the scope lasts; leaving early aborts it within a step or two.

        Blocks, model and ticket are held until the step loop has let go of the request.

        Args:
            lender: Has the model.
            request: Validated for that model.
            ticket_id: The ticket that it redeems; None for the engine's own requests.
            promised_bytes: What that ticket promises; what is expected of the model's answers when not given.

        Raises:
            InvalidRequest: Its worst case exceeds what new requests may have of the arena.
            Overloaded: The arena has no room, and promises it to others; or as many requests run as may.
            AlreadyExists: A request of that id is running.
            Unavailable: The engine is stopping.
        """
        with contextlib.ExitStack() as resources:
            if ticket_id is not None:
                self.occupancy.check_place()
            model = resources.enter_context(lender.use())
            self._claim(request.id, resources)
            job = Job(Sequence(request), model, is_background=ticket_id is None)
            loan = self._lending.admit(job, model, promised_bytes)
            resources.callback(self.desk.leave, loan)
            self._loop.submit(job)
            stream = TokenStream(Timeline(time.time_ns()), cached_tokens=loan.cached_tokens)
            run = self._runs[job] = Run(stream, ticket_id, model, loan, resources.pop_all())
            self.accepted += 1
            if len(self._runs) == 1:  # what comes to others is no progress
                self._heartbeat.progress()
        if ticket_id is not None:
            self._open_ticket(run, ticket_id, request)
        try:
            yield run.stream
        finally:
            self._loop.end(job, Cancelled("the caller left"))

    def end_all(self, model: LoadedModel, failure: HalogenError) -> int:
        """Ends what runs on a model with `failure`, within a step or two; returns how many requests that are."""
        jobs = [job for job in self._runs if job.model is model]
        for job in jobs:
            self._loop.end(job, failure)
        return len(jobs)

    async def forget(self, model: LoadedModel) -> None:
        """It answers nobody any more: what was kept of it is not found again, and its bytes are free."""
        self._lending.forget(model)
        for _ in self.prefixes.forget(model.origin):
            await asyncio.sleep(0)  # others have their turn

    def check(self) -> None:
        """Raises AssertionError unless every byte of the arena is accounted for."""
        self.arena.pool.check()
        self.desk.check()
        if self._check_every_step:
            self.arena.pool.check_spans()
        assert self.desk.reserved_bytes <= self.arena.pool.used_bytes <= self.arena.pool.total_bytes
        assert self._runs or not self.arena.pool.used_bytes, "an idle engine uses no blocks"
        assert {ticket.id for ticket in self.occupancy.tickets} <= {
            run.ticket_id for run in self._runs.values()
        }, "a ticket is open as long as its request runs"

    def _claim(self, request_id: RequestId, resources: contextlib.ExitStack) -> None:
        if request_id in self._running:
            raise AlreadyExists("a request of that id is running here; give every request its own id")
        self._running.add(request_id)
        resources.callback(self._running.discard, request_id)

    def _open_ticket(self, run: Run, ticket_id: TicketId, request: TokenRequest) -> None:
        """Of all that was promised: schedulers promise memory without knowing what is there."""
        ticket = LiveTicket(
            id=ticket_id, reserved_bytes=run.loan.promised_bytes, prompt_tokens=len(request.prompt)
        )
        self.occupancy.open(ticket)
        run.resources.callback(self.occupancy.close, ticket_id)

    def _tell_growth(self, loan: Loan) -> None:
        ticket_id = self._runs[loan.job].ticket_id
        if ticket_id is not None:
            self.occupancy.grow(ticket_id, loan.promised_bytes)

    def _deliver(self, updates: list[Update], step: StepTimes) -> None:
        """Whatever fails here, every stream that it concerns ends."""
        self._costs.hear(step)
        for update in updates:
            self._take(update, self._runs[update.job], step)
        self._settle(step)
        self._beat()
        if self._check_every_step or not self._runs:
            self._check_books()

    def _settle(self, step: StepTimes) -> None:
        try:
            self._loop.set_level(self.desk.settle(is_stuck=step.is_stuck))
        except Exception:
            log.exception("lending_failed")
            self._fail_all()

    def _check_books(self) -> None:
        """Where they are wrong, nothing under way can be trusted."""
        try:
            self.check()
        except Exception:
            log.exception("books_wrong")
            self._fail_all()

    def _beat(self) -> None:
        """A step has finished, whatever it gave: a chunk of a long prompt counts like a token."""
        if self._runs:
            self._heartbeat.progress()
        else:
            self._heartbeat.rest()
        self._set_stalled(False)

    def _set_stalled(self, is_stalled: bool) -> None:
        if is_stalled is not self._is_stalled:
            self._is_stalled = is_stalled
            self.on_stall(is_stalled)

    def _take(self, update: Update, run: Run, step: StepTimes) -> None:
        try:
            if update.is_first_chunk and run.ticket_id is not None:
                self.occupancy.start_prefill(run.ticket_id)
            run.tell(update, step)
            self._follow(update, run)
        except Exception:
            log.exception("delivery_failed", request_id=update.job.sequence.request.id)
            self._fail(update.job, run)
        if update.outcome is not None:
            self._close(update.job, run, update.outcome)

    def _follow(self, update: Update, run: Run) -> None:
        """What it means for the memory."""
        if update.moved is not None:
            self.desk.moved(run.loan, update.moved)
            run.stream.cached_tokens = run.loan.cached_tokens
        elif update.outcome is None:
            self.desk.follow(run.loan)

    def _close(self, job: Job, run: Run, outcome: Outcome) -> None:
        """The step loop has let go of it: what it holds goes back."""
        del self._runs[job]
        try:
            run.resources.close()
        except Exception:
            log.exception("close_failed", request_id=job.sequence.request.id)
            self._fail(job, run)
        self.ended[name_of(run.end(outcome))] += 1
        self._lending.learn(job, run.model, outcome)

    def _fail_all(self) -> None:
        for job, run in self._runs.items():
            self._fail(job, run)

    def _fail(self, job: Job, run: Run) -> None:
        """Its stream ends as one of a step that failed; what it holds is held until the step loop lets go of it."""
        failure = InternalError("the engine failed; ask again", reason="STEP_FAILED")
        self._loop.end(job, failure)
        run.end(failure)
