"""How a command ends in order, when a signal asks for it."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final

REFUSED: Final = 2  # the status of who cannot do what its settings say; argparse ends with it, too

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOT_OURS: Final = (signal.SIG_IGN, None)  # ignored, as under nohup, or taken by something that is not Python


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """For the scope, the first signal that asks to end raises SystemExit, so that all scopes within close.

    Those that follow are ignored, lest they disturb the closing; so is what was ignored before. For the main thread.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler not in _NOT_OURS]

    def end(number: int, _frame: object) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
