"""A request of the simulation, from its ticket to its last token."""

from __future__ import annotations

import contextlib

from services.engine.generations import Borrowed
from services.gateway.routes import Route
from tests.simulation.sim_engine import SimEngine


class Stream:
    """Has a ticket for an artifact on one engine, and then its model.

    Args:
        route: Where its gateway sends it.
        engine: Whose ticket it has.
        expires_at_s: When its ticket ends.
    """

    def __init__(self, route: Route, engine: SimEngine, expires_at_s: float) -> None:
        self.route = route
        self.engine = engine
        self.expires_at_s = expires_at_s
        self.held: Borrowed | None = None
        self._scope = contextlib.ExitStack()

    def redeem(self) -> None:
        """Takes its engine at its word; raises PreconditionFailed where that keeps it not."""
        self.held = self._scope.enter_context(self.engine.generations.borrow(self.route.artifact_id))

    def end(self) -> None:
        """Whatever it has goes back."""
        self._scope.close()
