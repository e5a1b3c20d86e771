"""A node's view of a part of the registry, which hears when the schedule says so."""

from __future__ import annotations

from typing import TypeVar

from services.common.registry.record import Record
from services.common.registry.store import Snapshot
from services.common.registry.view import View
from tests.simulation.sim_registry import SimRegistry

R = TypeVar("R", bound=Record)


class Mirror(View[R]):
    """A `View` without its task.

    Args:
        registry: What it mirrors.
        prefix: As a view's.
        record_type: As a view's.
        keeps: As a view's.
    """

    def __init__(
        self, registry: SimRegistry, prefix: str, record_type: type[R], *, keeps: bool = False
    ) -> None:
        super().__init__(registry, prefix, record_type, keeps=keeps)
        self._registry = registry
        self._position = -1

    @property
    def is_behind(self) -> bool:
        return self._position < self._registry.revision

    def hear(self, most: int = 1_000) -> None:
        """Hears of the next transactions that concern it, at most so many; of none while the registry is away."""
        if self._registry.is_away:
            return
        message, self._position = self._registry.after(self._position, self._prefix, most)
        if message is None:
            return
        if isinstance(message, Snapshot):
            self._replace(message)
        else:
            self._apply(message)
        self._pulse.beat()

    def start_over(self) -> None:
        """Hears everything that stands anew, next."""
        self._position = -1

    def repeat(self, back: int) -> None:
        """Hears of so many of the registry's last transactions again, next."""
        self._position = max(0, self._position - back) if self._position >= 0 else -1
