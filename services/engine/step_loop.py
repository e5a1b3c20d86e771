"""The thread that computes, and its two doors to the event loop: jobs in, one batch of updates per step out."""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from services.common.errors import HalogenError, Unavailable
from services.engine.step_tally import StepTally
from services.engine.stepper import Job, Stepper, Update
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
        self._inbox: collections.deque[Job] = collections.deque()
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

    def end(self, job: Job, failure: HalogenError) -> None:
        """Ends a job with `failure` before its next step, unless another was first; no error if it has ended."""
        job.ending = job.ending or failure

    def _run(self) -> None:
        while self._receive():
            begin_ns = time.time_ns()
            self._publish(self._step(), begin_ns)
        stopping = Unavailable("this engine is stopping; ask another", reason="STOPPING", retry_after_s=0.1)
        self._publish(list(self._stepper.fail_all(stopping)), time.time_ns())

    def _receive(self) -> bool:
        """Takes what has come in, waiting for it if there is nothing else to do; False once it is to stop."""
        with self._wake:
            while self._stepper.is_idle and not self._inbox and not self._stopping:
                self._wake.wait()
            while self._inbox:
                self._stepper.add(self._inbox.popleft())
            return not self._stopping

    def _step(self) -> list[Update]:
        self.steps += 1
        return list(self._stepper.step(time.monotonic()))

    def _publish(self, updates: list[Update], begin_ns: int) -> None:
        if updates:
            self._loop.call_soon_threadsafe(self._deliver, updates, StepTimes(begin_ns, time.time_ns()))
