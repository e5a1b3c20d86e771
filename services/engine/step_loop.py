"""The thread that computes, and its two doors to the event loop: jobs in, one batch of updates per step out."""

from __future__ import annotations

import asyncio
import collections
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from services.common.errors import HalogenError, Unavailable
from services.common.watermark import Level
from services.engine.job import Job, Order
from services.engine.step_tally import StepTally
from services.engine.stepper import Stepper, Update
from services.engine.timeline import StepTimes


class StepLoop:
    """Steps while there is work, and parks without spinning while there is none.

    Its inbox needs no bound of its own: whoever submits holds a reservation in the arena.

    Args:
        stepper: Used by the thread alone.
        deliver: Called on the event loop with what a step gave, and when it was computed; once per step.

    Attributes:
        steps: How many steps have been computed.
    """

    def __init__(self, stepper: Stepper, deliver: Callable[[list[Update], StepTimes], None]) -> None:
        self.steps = 0
        self._stepper = stepper
        self._deliver = deliver
        self._inbox: collections.deque[Job | Order] = collections.deque()
        self._has_news = False
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends what still runs with Unavailable and waits for the step under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.shield(asyncio.to_thread(self._thread.join))

    @property
    def tally(self) -> StepTally:
        """What has been computed."""
        return self._stepper.tally

    def submit(self, job: Job) -> None:
        """Hands over a job; its updates come through `deliver`.

        Raises:
            Unavailable: The loop is stopping.
        """
        with self._wake:
            if self._stopping:
                raise Unavailable(
                    "this engine is stopping; ask another", reason="STOPPING", retry_after_s=0.1
                )
            self._inbox.append(job)
            self._wake.notify()

    def order(self, order: Order) -> None:
        """Is done before the next step."""
        with self._wake:
            self._inbox.append(order)
            self._wake.notify()

    def end(self, job: Job, failure: HalogenError) -> None:
        """Ends a job with `failure` before its next step, unless another was first; no error if it has ended."""
        job.ending = job.ending or failure
        self.nudge()

    def nudge(self) -> None:
        """Something has changed for a job that could not be computed: the next step shall try."""
        with self._wake:
            self._has_news = True
            self._wake.notify()

    def set_level(self, level: Level) -> None:
        """What memory allows, for the next steps."""
        self._stepper.level = level

    def _run(self) -> None:
        while self._receive():
            self._compute()
        stopping = Unavailable("this engine is stopping; ask another", reason="STOPPING", retry_after_s=0.1)
        self._publish(list(self._stepper.fail_all(stopping)), time.time_ns())

    def _receive(self) -> bool:
        """Takes what has come in, waiting for it if there is nothing else to do; False once it is to stop."""
        with self._wake:
            while not (self._inbox or self._stopping or self._may_step()):
                self._wake.wait(self._patience_s())
            self._has_news = False
            while self._inbox:
                item = self._inbox.popleft()
                if isinstance(item, Job):
                    self._stepper.add(item)
                else:
                    self._stepper.order(item)
            return not self._stopping

    def _may_step(self) -> bool:
        """Whether a step may come to something: there is work, and it has changed if nothing came of it last time."""
        stepper = self._stepper
        if stepper.is_stuck and not self._has_news:
            return time.monotonic() >= stepper.next_deadline
        return not stepper.is_idle

    def _patience_s(self) -> float | None:
        """How long nothing has to be done by itself."""
        due = self._stepper.next_deadline
        return None if math.isinf(due) else max(0.0, due - time.monotonic())

    def _compute(self) -> None:
        """One step, and what it gave told: once it returns, nothing here keeps a model while the thread waits."""
        begin_ns, tally = time.time_ns(), self.tally
        before, decoded_before = tally.prompt_tokens, tally.decoded_tokens
        updates = self._step()
        prompt_tokens, decodes = tally.prompt_tokens - before, tally.decoded_tokens - decoded_before
        self._stepper.pace.hear((time.time_ns() - begin_ns) / 1e9, prompt_tokens, decodes)
        self._publish(updates, begin_ns, prompt_tokens)

    def _step(self) -> list[Update]:
        self.steps += 1
        return list(self._stepper.step(time.monotonic()))

    def _publish(self, updates: list[Update], begin_ns: int, prompt_tokens: int = 0) -> None:
        is_stuck = self._stepper.is_stuck and not self._stepper.is_idle
        if updates or is_stuck:
            step = StepTimes(begin_ns, time.time_ns(), prompt_tokens, is_stuck)
            self._loop.call_soon_threadsafe(self._deliver, updates, step)
