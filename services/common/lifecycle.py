"""How a process lives: started, ready, asked to end, drained, gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from services.common.errors import HalogenError
from services.common.processors import usable_processors

log = structlog.get_logger()


REPEAT_S: Final = 1.0
_WAITING_WORKERS: Final = 4  # that wait for a disk or another process


class Stop:
    """The wish to end, from SIGTERM or SIGINT; a second signal, a second later or more, ends the process at once.

    Signals in quick succession are one wish: when a launcher of several threads is killed, the kernel tells its
    children once for each thread.
    """

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._asked_at_s = 0.0

    def listen(self) -> None:
        """Takes over SIGTERM and SIGINT; call it in the running loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask, signal.Signals(number).name)

    def ask(self, why: str) -> None:
        now_s = time.monotonic()
        if self._asked.is_set():
            if now_s - self._asked_at_s < REPEAT_S:
                return
            log.warning("stop_forced", why=why)
            sys.stderr.flush()
            os._exit(1)  # no handler, no finally: the operator has waited long enough
        log.info("stop_asked", why=why)
        self._asked_at_s = now_s
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()


def run(main: Callable[[Stop], Coroutine[Any, Any, None]]) -> None:
    """Runs a process's `main` to its end, on uvloop where there is one; status 1 after an error of the tree."""
    try:
        import uvloop  # noqa: PLC0415  # absent on Windows
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            runner.run(_listening(main))
        except* HalogenError as failures:
            for failure in failures.exceptions:
                log.error("process_failed", error=str(failure))  # noqa: TRY400  # said to the operator, no fault of ours
            sys.exit(1)


async def _listening(main: Callable[[Stop], Coroutine[Any, Any, None]]) -> None:
    workers = ThreadPoolExecutor(
        usable_processors() + _WAITING_WORKERS, "worker"
    )  # asyncio counts the host's
    asyncio.get_running_loop().set_default_executor(workers)
    stop = Stop()
    stop.listen()
    await main(stop)
