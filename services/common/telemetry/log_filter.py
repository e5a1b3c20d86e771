"""Which events are logged, by what they are about."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

import structlog
from structlog.typing import EventDict, WrappedLogger

_ALWAYS: Final = frozenset({"warning", "error", "critical", "exception"})  # as structlog's methods are called


@dataclasses.dataclass(frozen=True, slots=True)
class LogFilter:
    """A processor that drops events of which neither component nor name matches, unless they are warnings or worse.

    Attributes:
        shown: What is to be found anywhere in one of the two.
    """

    shown: re.Pattern[str]

    def __call__(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:  # noqa: ARG002  # structlog passes them
        """The event as it is.

        Raises:
            structlog.DropEvent: Nobody asked for it.
        """
        names = (str(event.get("component", "")), str(event["event"]))
        if method in _ALWAYS or any(map(self.shown.search, names)):
            return event
        raise structlog.DropEvent
