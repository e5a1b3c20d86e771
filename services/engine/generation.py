"""An artifact loaded in this engine, from the first byte fetched to the last page unmapped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from services.common.errors import InternalError
from services.common.ids import ArtifactId
from services.common.registry.publish_records import Failure
from services.common.registry.records import GenerationState as State
from services.engine.lender import LoadedModel

log = structlog.get_logger(component="state_machine")

_ENDS: Final = {State.FAILED, State.SUPERSEDED}
_MOVES: Final = {
    State.FETCHING: {
        State.VERIFYING,
        State.ALLOCATING,
        *_ENDS,
    },  # first room, then its files: DRAIN_THEN_LOAD
    State.VERIFYING: {State.ALLOCATING, State.FETCHING, *_ENDS},  # back for another try
    State.ALLOCATING: {State.WARMING, State.FETCHING, *_ENDS},
    State.WARMING: {State.ACTIVE, *_ENDS},
    State.ACTIVE: {State.DRAINING},
    State.DRAINING: {State.ACTIVE, State.RETIRED},  # back when a rollback names it while it is still here
    State.RETIRED: set[State](),
    State.FAILED: set[State](),  # published anew it is another generation
    State.SUPERSEDED: set[State](),
}


class Generation:
    """Counts its users; its model stays until it has ended and is let go.

    Args:
        artifact_id: What it is a load of.
        changed: Called after every change of state, error, or from the last user to none.

    Attributes:
        error: Why it failed, or what it waits for.
        failure: The same for programs, of one that has FAILED.
    """

    def __init__(self, artifact_id: ArtifactId, changed: Callable[[], None]) -> None:
        self.artifact_id = artifact_id
        self.error = ""
        self.failure: Failure | None = None
        self._changed = changed
        self._state = State.FETCHING
        self._model: LoadedModel | None = None
        self._users = 0

    @property
    def state(self) -> State:
        return self._state

    @property
    def users(self) -> int:
        return self._users

    @property
    def model(self) -> LoadedModel | None:
        return self._model

    @property
    def layout(self) -> str:
        """How its weights lie; empty: as they are stored, or not yet known."""
        built = self._model.built if self._model else None
        return built.layout if built else ""

    def advance(self, state: State, failure: Failure | None = None) -> None:
        """Moves to `state`, with the failure that leads there if one does.

        Raises:
            InternalError: There is no such move.
        """
        if state not in _MOVES[self._state] or (state is State.RETIRED and self._users):
            raise InternalError(f"generation {self.artifact_id[:12]}: no way from {self._state} to {state}")
        error = failure.message if failure else ""
        log.info("generation_state", artifact_id=self.artifact_id, old=self._state, new=state, error=error)
        self._state, self.error, self.failure = state, error, failure
        self._changed()

    def explain(self, error: str) -> None:
        """Says what it waits for."""
        self.error = error
        self._changed()

    def install(self, model: LoadedModel) -> None:
        """Gives it its model, before it is warmed up."""
        self._model = model

    def let_go(self) -> None:
        """Drops the model once it has ended and nobody uses it; unmaps, so it may take long. In any thread."""
        assert self._state.is_over
        assert not self._users
        self._model = None

    @contextlib.contextmanager
    def use(self) -> Iterator[LoadedModel]:
        """Keeps the model while the scope lasts."""
        assert self._model is not None
        self._users += 1
        try:
            yield self._model
        finally:
            self._users -= 1
            if not self._users:
                self._changed()
