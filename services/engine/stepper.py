"""The engine's heart, one step at a time: drop what nobody wants, plan, compute, choose, tell. No thread, no clock."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import structlog

from services.common.errors import DeadlinePassed, HalogenError, InternalError
from services.common.watermark import Level
from services.engine.batcher import Line, Share, plan
from services.engine.chunk_pace import BOUND_S, ChunkPace
from services.engine.job import ComeBack, Job, Order, SetBack, StepModel
from services.engine.ragged import Ragged
from services.engine.sampling import Choice, Draw, choose
from services.engine.sequence import Phase, Sequence
from services.engine.step_tally import StepTally

log = structlog.get_logger()


class FinishReason(enum.Enum):
    """Why an answer is complete."""

    STOP = "stop"  # a stop token
    LENGTH = "length"  # max_tokens


Outcome = FinishReason | HalogenError


def name_of(outcome: Outcome) -> str:
    """A finish reason's, or an error's."""
    return outcome.value if isinstance(outcome, FinishReason) else outcome.reason.lower()


class _LineKey(NamedTuple):
    """Jobs of one line wait for each other; lines take turns."""

    model: StepModel
    is_background: bool

    @classmethod
    def of(cls, job: Job) -> _LineKey:
        return cls(job.model, job.is_background)


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """What one step meant for one job: that its prompt is under way, a token, its end, or several of these.

    Attributes:
        is_first_chunk: The first of its prompt was computed.
        moved: PREEMPTED if it has given up its blocks, WAITING if it has blocks again.
    """

    job: Job
    token: int | None = None
    logprob: float | None = None
    outcome: Outcome | None = None
    is_first_chunk: bool = False
    moved: Phase | None = None


class Stepper:
    """Computes jobs together, each to its end.

    Every job that is added ends in exactly one update with an outcome, whatever fails.

    Args:
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most sequences under way at once.
        max_step_s: Seconds that a step with decodes may take before the next has fewer tokens of prompts.

    Attributes:
        pace: Is told what each step took.
        tally: What has been computed.
        level: Of memory, for the next steps; set by any thread.
        is_stuck: Nothing could be computed in the last step: all that is here waits for memory.
    """

    def __init__(self, *, chunk_tokens: int, max_batch: int, max_step_s: float = BOUND_S) -> None:
        self.tally = StepTally()
        self.pace = ChunkPace(chunk_tokens, max_step_s)
        self.level = Level.OPEN
        self.is_stuck = False
        self._chunk_tokens = chunk_tokens
        self._max_batch = max_batch
        self._jobs: dict[Sequence, Job] = {}
        # In order of arrival, whoever has begun first; none empty: an empty one would keep its model.
        self._lines: dict[_LineKey, dict[Sequence, None]] = {}
        self._orders: list[Order] = []
        self._steps = 0

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    @property
    def next_deadline(self) -> float:
        """When the first job is to end for its deadline, in seconds of the clock of `step`; math.inf for never."""
        return min((sequence.request.deadline for sequence in self._jobs), default=math.inf)

    def add(self, job: Job) -> None:
        """Takes in a job; one without blocks waits until it comes back."""
        self._jobs[job.sequence] = job
        if job.sequence.phase is not Phase.PREEMPTED:
            self._lines.setdefault(_LineKey.of(job), {})[job.sequence] = None

    def order(self, order: Order) -> None:
        """Is done before the next step, unless its job has ended."""
        self._orders.append(order)

    def step(self, now: float) -> Iterator[Update]:
        """Computes one step; a job's end and the update that tells it come together.

        Args:
            now: time.monotonic().
        """
        try:
            yield from self._drop_unwanted(now)
            yield from self._obey()
            shares_by_model = self._by_model(self._plan())
            self.is_stuck = not shares_by_model
            for model, shares in shares_by_model.items():
                yield from self._compute(model, shares)
        except Exception:
            log.exception("stepper_failed")  # a fault outside any one model: nothing under way can be trusted
            yield from self.fail_all(InternalError("the engine failed; ask again", reason="STEP_FAILED"))

    def fail_all(self, failure: HalogenError) -> Iterator[Update]:
        """Ends every job with `failure`."""
        for job in tuple(self._jobs.values()):
            yield self._end(job, failure)

    def _plan(self) -> list[Share]:
        self._steps += 1
        return plan(
            [Line(sequences, key.is_background) for key, sequences in self._lines.items()],
            chunk_tokens=self._chunk_tokens,
            max_batch=self._max_batch,
            turn=self._steps,
            level=self.level,
            beside_tokens=self.pace.tokens,
        )

    def _by_model(self, shares: Iterable[Share]) -> dict[StepModel, list[Share]]:
        groups: dict[StepModel, list[Share]] = {}
        for share in shares:
            groups.setdefault(self._jobs[share.sequence].model, []).append(share)
        return groups

    def _drop_unwanted(self, now: float) -> Iterator[Update]:
        for job in tuple(self._jobs.values()):
            if job.ending:
                yield self._end(job, job.ending)
            elif now >= job.sequence.request.deadline:
                yield self._end(job, DeadlinePassed("the deadline passed before the answer was complete"))

    def _obey(self) -> Iterator[Update]:
        orders, self._orders = self._orders, []
        for order in orders:
            if order.job.sequence in self._jobs:
                try:
                    yield self._set_back(order) if isinstance(order, SetBack) else self._bring_back(order)
                except Exception:
                    log.exception("order_failed", request_id=order.job.sequence.request.id)
                    yield self._end(order.job, _failed())

    def _set_back(self, order: SetBack) -> Update:
        self._leave_line(order.job)
        order.job.set_back(order.way, order.most_blocks)
        return Update(order.job, moved=Phase.PREEMPTED)

    def _bring_back(self, order: ComeBack) -> Update:
        """Before those who have not begun: it came before them."""
        job = order.job
        job.come_back(order.reservation, order.prefix)
        line = self._lines.setdefault(_LineKey.of(job), {})
        new = [sequence for sequence in line if sequence.phase is Phase.WAITING]
        for sequence in new:
            del line[sequence]
        line.update(dict.fromkeys([job.sequence, *new]))
        return Update(job, moved=Phase.WAITING)

    def _compute(self, model: StepModel, shares: list[Share]) -> Iterator[Update]:
        """One model's part; if it fails, its jobs end and those of other models go on."""
        try:
            for share in shares:
                share.sequence.cover(share.tokens)
            draws = [Draw(s.sequence.request.sampling, s.sequence.length) for s in shares if s.is_due]
            choices = iter(choose(model.forward(Ragged.of(shares)), draws))
        except Exception:
            log.exception("step_failed", requests=[share.sequence.request.id for share in shares])
            for share in shares:
                yield self._end(self._jobs[share.sequence], _failed())
        else:
            self.tally.add(shares)
            for share in shares:
                yield self._advance(self._jobs[share.sequence], share.tokens, choices)

    def _advance(self, job: Job, tokens: int, choices: Iterator[Choice | InternalError]) -> Update:
        sequence = job.sequence
        is_first = not sequence.has_begun
        if not sequence.advance(tokens):
            return Update(job, is_first_chunk=is_first)
        choice = next(choices)
        if isinstance(choice, InternalError):
            return self._end(job, choice)
        sequence.append(choice.token)
        self.tally.generated_tokens += 1
        reason = _finish_reason(sequence, choice.token)
        if reason:
            self._let_go(job)
        return Update(job, choice.token, choice.logprob, reason, is_first)

    def _end(self, job: Job, failure: HalogenError) -> Update:
        self._let_go(job)
        return Update(job, outcome=failure)

    def _let_go(self, job: Job) -> None:
        self._leave_line(job)
        job.sequence.move(Phase.ENDED)
        del self._jobs[job.sequence]

    def _leave_line(self, job: Job) -> None:
        if job.sequence.phase is Phase.PREEMPTED:
            return
        key = _LineKey.of(job)
        del self._lines[key][job.sequence]
        if not self._lines[key]:
            del self._lines[key]


def _failed() -> InternalError:
    return InternalError("the engine failed while computing this request", reason="STEP_FAILED")


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    if token in sequence.request.sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.generated == sequence.request.sampling.max_tokens else None
