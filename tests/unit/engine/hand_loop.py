"""A step loop without its thread: steps come when the test wants one, on a clock of its own."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from services.engine.step_loop import StepLoop
from services.engine.stepper import Update
from services.engine.timeline import StepTimes

_NS_PER_TOKEN: Final = 1_000_000  # of a prompt, as steps are told to take


class HandLoop(StepLoop):
    """The same doors, the same stepper; whatever happens, happens in one order.

    Attributes:
        now: Seconds: one for each turn.
    """

    now = 0.0

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._run()

    def turn(self) -> bool:
        """One step, if a step may come to something; whether it was made."""
        self.now += 1
        if not (self._inbox or self._may_step()):
            return False
        self._receive()
        before = self.tally.prompt_tokens
        self._publish(self._step(), 0, self.tally.prompt_tokens - before)
        return True

    def _may_step(self) -> bool:
        stepper = self._stepper
        if stepper.is_stuck and not self._has_news:
            return self.now >= stepper.next_deadline
        return not stepper.is_idle

    def _step(self) -> list[Update]:
        self.steps += 1
        return list(self._stepper.step(self.now))

    def _publish(self, updates: list[Update], begin_ns: int, prompt_tokens: int = 0) -> None:
        is_stuck = self._stepper.is_stuck and not self._stepper.is_idle
        if updates or is_stuck:
            end_ns = 1 + prompt_tokens * _NS_PER_TOKEN
            self._deliver(updates, StepTimes(0, end_ns, prompt_tokens, is_stuck))
