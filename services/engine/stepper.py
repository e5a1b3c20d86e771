"""The engine's heart, one step at a time: drop what nobody wants, plan, compute, choose, tell. No thread, no clock."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import structlog

from services.common.errors import DeadlinePassed, HalogenError, InternalError
from services.engine.batcher import Line, Share, plan
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


class StepModel(Protocol):
    """What computes a step: one generation's weights over its view of the arena."""

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        """Logits of the step's sample_rows, [rows, vocabulary]; keys and values of all its tokens are stored."""
        ...


@dataclasses.dataclass(eq=False, slots=True)
class Job:
    """A sequence with the model that computes it.

    Attributes:
        is_background: Nobody waits for its answer.
        ending: What it is to end with before its next step; may be set by another thread at any time.
    """

    sequence: Sequence
    model: StepModel
    is_background: bool = False
    ending: HalogenError | None = None

    @property
    def line(self) -> _LineKey:
        return _LineKey(self.model, self.is_background)


class _LineKey(NamedTuple):
    """Jobs of one line wait for each other; lines take turns."""

    model: StepModel
    is_background: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """What one step meant for one job: that its prompt is under way, a token, its end, or several of these."""

    job: Job
    token: int | None = None
    logprob: float | None = None
    outcome: Outcome | None = None
    is_first_chunk: bool = False


class Stepper:
    """Computes jobs together, each to its end.

    Every job that is added ends in exactly one update with an outcome, whatever fails.

    Args:
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most sequences under way at once.

    Attributes:
        tally: What has been computed.
    """

    def __init__(self, *, chunk_tokens: int, max_batch: int) -> None:
        self.tally = StepTally()
        self._chunk_tokens = chunk_tokens
        self._max_batch = max_batch
        self._jobs: dict[Sequence, Job] = {}  # in order of arrival, and so in every line
        self._lines: dict[
            _LineKey, dict[Sequence, None]
        ] = {}  # none empty: an empty one would keep its model
        self._steps = 0

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    def add(self, job: Job) -> None:
        self._jobs[job.sequence] = job
        self._lines.setdefault(job.line, {})[job.sequence] = None

    def step(self, now: float) -> Iterator[Update]:
        """Computes one step; a job's end and the update that tells it come together.

        Args:
            now: time.monotonic().
        """
        try:
            yield from self._drop_unwanted(now)
            for model, shares in self._by_model(self._plan()).items():
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

    def _compute(self, model: StepModel, shares: list[Share]) -> Iterator[Update]:
        """One model's part; if it fails, its jobs end and those of other models go on."""
        try:
            for share in shares:
                share.sequence.cover(share.tokens)
            draws = [Draw(s.sequence.request.sampling, s.sequence.length) for s in shares if s.is_due]
            choices = iter(choose(model.forward(Ragged.of(shares)), draws))
        except Exception:
            log.exception("step_failed", requests=[share.sequence.request.id for share in shares])
            failure = InternalError("the engine failed while computing this request", reason="STEP_FAILED")
            for share in shares:
                yield self._end(self._jobs[share.sequence], failure)
        else:
            self.tally.add(shares)
            for share in shares:
                yield self._advance(self._jobs[share.sequence], share.tokens, choices)

    def _advance(self, job: Job, tokens: int, choices: Iterator[Choice | InternalError]) -> Update:
        sequence = job.sequence
        is_first = sequence.phase is Phase.WAITING
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
        job.sequence.move(Phase.ENDED)
        del self._jobs[job.sequence]
        line = self._lines[job.line]
        del line[job.sequence]
        if not line:
            del self._lines[job.line]


def _finish_reason(sequence: Sequence, token: int) -> FinishReason | None:
    if token in sequence.request.sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.generated == sequence.request.sampling.max_tokens else None
