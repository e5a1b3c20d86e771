"""Sets requests back wherever they happen to be, though there is memory for all."""

from __future__ import annotations

import asyncio
import collections
import threading
from typing import Final

from services.common.watermark import Level
from services.engine.engine import Engine
from services.engine.loan import Loan
from services.engine.preemption import MOST_PREEMPTIONS, CostModel, Way
from services.engine.sequence import Phase

_EVERY: Final = 5  # steps, but for each request other ones
_COMPUTED: Final = {Phase.PREFILL, Phase.DECODE}
_COSTS: Final = {Way.SWAP: CostModel(copy_bytes_per_s=1e30, prefill_s_per_token=1.0)} | {
    Way.RECOMPUTE: CostModel(copy_bytes_per_s=1e-30, prefill_s_per_token=1.0)
}


class Nuisance:
    """Stands before the engine's desk: whenever it settles, some requests are told to give back their memory.

    Args:
        engine: Has swap space for all of them.

    Attributes:
        way: How they are set back; None leaves them alone.
        times: How often each was, by its id.
    """

    def __init__(self, engine: Engine) -> None:
        self.way: Way | None = None
        self.times: collections.Counter[str] = collections.Counter()
        self._desk = engine.desk
        self._settle = engine.desk.settle
        self._loop = asyncio.get_running_loop()
        self._turns = 0
        self._desk.settle = self._disturb  # type: ignore[method-assign]

    def meet(self) -> None:
        """Has the step thread wait until the event loop knows of all steps before: else a request is over too soon."""
        if self.way is not None:
            met = threading.Event()
            self._loop.call_soon_threadsafe(met.set)
            assert met.wait(timeout=60)

    def _disturb(self) -> Level:
        self._turns += 1
        if self.way is not None:
            self._desk._cost = lambda: _COSTS[self.way or Way.SWAP]
            for loan in [each for each in self._desk.loans.values() if self._is_due(each)]:
                self.times[loan.job.sequence.request.id] += 1
                self._desk._set_back(loan)
        return self._settle()

    def _is_due(self, loan: Loan) -> bool:
        """Somebody who is in the middle of a prompt or an answer, and may be set back."""
        job = loan.job
        is_under_way = loan.has_memory and not loan.is_leaving and job.ending is None
        is_turn = (loan.age + self._turns) % _EVERY == 0 and loan.preemptions < MOST_PREEMPTIONS
        return is_turn and is_under_way and job.sequence.phase in _COMPUTED
