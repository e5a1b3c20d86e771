"""A request under way: what it holds, and what its reader is told of each step."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Final

from services.common.errors import Cancelled, DeadlinePassed
from services.common.ids import TicketId
from services.engine.lender import LoadedModel
from services.engine.loan import Loan
from services.engine.stepper import FinishReason, Outcome, Update
from services.engine.timeline import StepTimes
from services.engine.token_stream import TokenStream

_SOUND: Final = (FinishReason, Cancelled, DeadlinePassed)  # what was computed until then is right


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One request from its first step to its last.

    Attributes:
        stream: For its reader.
        ticket_id: What it was let in by; None for the engine's own requests.
        model: Computes it.
        loan: Its memory.
        resources: All that it gives back at its end.
    """

    stream: TokenStream
    ticket_id: TicketId | None
    model: LoadedModel
    loan: Loan
    resources: contextlib.ExitStack

    def tell(self, update: Update, step: StepTimes) -> None:
        """What a step meant for it, but for its end; nothing is told of one that has ended."""
        if self.stream.outcome is not None:
            return
        if update.is_first_chunk:
            self.stream.timeline.start_prefill(step)
        if update.token is not None:
            if not self.stream.timeline.has_token:
                self.loan.keep()  # others may be waiting with the same beginning
            self.stream.push(update.token, step, update.logprob)
        if update.outcome is not None:
            if isinstance(update.outcome, _SOUND):
                self.loan.keep()
            self.stream.timeline.end(step)

    def end(self, outcome: Outcome) -> Outcome:
        """Ends the stream, unless it has ended; how it has."""
        ended = self.stream.outcome
        if ended is None:
            self.stream.end(outcome)
        return ended or outcome
