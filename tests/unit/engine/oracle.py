"""What may become of a request, and what may not, whatever happens around it."""

from __future__ import annotations

import collections
import dataclasses
from typing import Final

from services.common.errors import (
    Cancelled,
    DeadlinePassed,
    HalogenError,
    InternalError,
    InvalidRequest,
    Overloaded,
    PreconditionFailed,
    Unavailable,
)
from services.engine.sequence import TokenRequest
from services.engine.stepper import FinishReason
from services.engine.token_stream import Piece, TokenStream
from tests.unit.engine.paged_model import PagedModel

REFUSALS: Final = (Overloaded, InvalidRequest, Unavailable)


@dataclasses.dataclass
class Case:
    """A request: what was done to it, and what it was told.

    Attributes:
        request: It.
        model: Computes it.
        faults: What was to fail of the model when it came.
        was_alone: Nothing else was under way when it came.
        may_fit: Its worst case is no more than the engine promises.
        has_left: Its reader did.
        was_drained: Its generation was, for good.
        was_stopped: Its engine was.
        stream: What it got; None if it was refused.
        failure: What its reader got in place of an end.
    """

    request: TokenRequest
    model: PagedModel
    faults: int
    was_alone: bool = False
    may_fit: bool = True
    has_left: bool = False
    was_drained: bool = False
    was_stopped: bool = False
    stream: TokenStream | None = None
    failure: HalogenError | None = None
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    ends: list[FinishReason] = dataclasses.field(default_factory=list)

    def hear(self, piece: Piece) -> None:
        self.tokens += piece.token_ids
        self.logprobs += piece.logprobs
        self.ends += [piece.finish] if piece.finish else []

    @property
    def end(self) -> str:
        """The one state that it ended in."""
        if self.stream is None:
            return "left before" if self.failure is None else f"refused {type(self.failure).__name__}"
        outcome = self.stream.outcome
        return outcome.value if isinstance(outcome, FinishReason) else type(outcome).__name__


class Oracle:
    """Judges requests that have ended, one by one, and counts how they did."""

    def __init__(self) -> None:
        self.ends: collections.Counter[str] = collections.Counter()

    def judge(self, case: Case) -> None:
        """Raises AssertionError where it ended otherwise than it may."""
        self.ends[case.end] += 1
        if case.stream is None:
            self._judge_refusal(case)
        else:
            self._judge_end(case, case.stream)
        self._judge_answer(case)

    def _judge_refusal(self, case: Case) -> None:
        failure = case.failure
        assert case.has_left if failure is None else isinstance(failure, REFUSALS), case
        assert not (case.was_alone and isinstance(failure, Overloaded)), "an empty engine has room"
        assert case.may_fit is not isinstance(failure, InvalidRequest) or failure is None, case
        assert case.was_stopped or not isinstance(failure, Unavailable), case

    def _judge_end(self, case: Case, stream: TokenStream) -> None:
        outcome = stream.outcome
        assert outcome is not None, f"it has not ended: {case}"
        if isinstance(outcome, FinishReason):
            assert case.has_left or [outcome] == case.ends, case
        else:
            assert [] == case.ends, case
            assert case.has_left or outcome is case.failure, case
            assert self._may_fail(case, outcome), case

    def _may_fail(self, case: Case, outcome: HalogenError) -> bool:
        match outcome:
            case Cancelled():
                return case.has_left
            case DeadlinePassed():
                return case.request.deadline < float("inf")
            case InternalError():
                return case.model.faults > case.faults
            case PreconditionFailed():
                return case.was_drained
            case Unavailable():
                return case.was_stopped
        return False

    def _judge_answer(self, case: Case) -> None:
        """As far as it goes it is right; it goes to the end where it is complete."""
        sampling = case.request.sampling
        whole = case.model.answer(case.request.prompt, sampling.max_tokens)
        stop = next((at for at, token in enumerate(whole, 1) if token in sampling.stop_token_ids), None)
        whole = whole[:stop]
        assert whole[: len(case.tokens)] == case.tokens, case
        assert len(case.tokens if sampling.logprobs else []) == len(case.logprobs)
        assert all(logprob == 0.0 for logprob in case.logprobs), "a token that leaves the others no chance"
        if case.ends:
            assert len(whole) == len(case.tokens), case
            assert [FinishReason.STOP if stop else FinishReason.LENGTH] == case.ends, case
