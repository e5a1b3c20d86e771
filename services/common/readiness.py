"""Whether a process can do its work now: one object behind every way of asking."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from types import MappingProxyType
from typing import Final

from services.common.pulse import Pulse

NO_NAMES: Final[Mapping[str, bool]] = MappingProxyType({})
STARTING: Final = "it is starting"
STOPPING: Final = "it is stopping"


class Readiness:
    """What health clients and probes are told; set on the event loop alone.

    A process begins as not started and not ready. Once it is ending, nothing makes it ready again.
    """

    def __init__(self) -> None:
        self._started = self._ending = False
        self._missing = STARTING
        self._names: Mapping[str, bool] = NO_NAMES
        self._pulse = Pulse()
        self._pulse.beat()  # for those who begin to listen

    @property
    def started(self) -> bool:
        """Whether the process answers calls at all. True for the rest of its life."""
        return self._started

    @property
    def ending(self) -> bool:
        """Whether the process has been asked to end."""
        return self._ending

    @property
    def ready(self) -> bool:
        """Whether the process can do its work."""
        return not self.missing

    @property
    def missing(self) -> str:
        """What it lacks to be ready, in a few words without a full stop; empty when it is ready."""
        return STOPPING if self._ending else self._missing

    @property
    def names(self) -> Mapping[str, bool]:
        """Each ``model@cohort`` that the process knows of, and whether it serves it."""
        return dict.fromkeys(self._names, False) if self._ending else self._names

    def start(self) -> None:
        """The process answers calls from now on."""
        self._started = True
        self._pulse.beat()

    def set(self, missing: str, names: Mapping[str, bool] = NO_NAMES) -> None:
        """Says how things stand.

        Args:
            missing: What it lacks to be ready; empty makes it ready.
            names: All that are known, each with whether it is served.
        """
        if (missing, names) != (self._missing, self._names):
            self._missing, self._names = missing, MappingProxyType(dict(names))
            self._pulse.beat()

    def end(self) -> None:
        """Nothing is ready from now on, whatever is set."""
        self._ending = True
        self._pulse.beat()

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields at once, and again after changes; several may come as one. Never ends by itself."""
        return self._pulse.beats()
