"""A step loop without its thread: steps come when the test wants one, on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from services.engine.step_loop import StepLoop
from services.engine.stepper import Update


class _Here:
    """An event loop to a thread that is not there."""

    def call_soon_threadsafe(self, told: Callable[..., object], *what: object) -> None:
        told(*what)


class HandLoop(StepLoop):
    """The same doors, the same stepper; whatever happens, happens in one order.

    Attributes:
        now: Seconds: one for each turn.
    """

    now = 0.0

    async def __aenter__(self) -> Self:
        self._loop = _Here()  # type: ignore[assignment]  # nothing else is asked of it
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
