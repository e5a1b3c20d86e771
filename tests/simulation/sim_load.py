"""The way of a generation to ACTIVE, as `generation_load` goes it, one step at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator

from services.common.errors import HalogenError, InternalError
from services.common.registry.records import GenerationState as State
from services.engine.generation import Generation
from services.engine.generations import Generations
from tests.simulation.sim_model import SimModel


class SimLoad:
    """Goes on, fails or is called off, as the schedule has it.

    Args:
        generations: Told of every step.
        generation: What is loaded.
        placed: Told when it has a place in memory without a `Proceed`.
        make: Makes its model.
        activate: Lets it serve, if it is still named.
        chance: Whether a model comes although its load was called off meanwhile, as one from a thread may.
    """

    def __init__(
        self,
        generations: Generations,
        generation: Generation,
        placed: Callable[[Generation], None],
        make: Callable[[], SimModel],
        activate: Callable[[], None],
        chance: random.Random,
    ) -> None:
        self.generation = generation
        self.may_proceed = False
        self.has_room = False  # it has a place in memory, in this try
        self.is_called_off = False
        self.is_over = False
        self._generations = generations
        self._placed = placed
        self._make = make
        self._activate = activate
        self._chance = chance
        self._is_trying = False  # else it has not begun, or pauses
        self._way = self._run()
        next(self._way)

    def go_on(self) -> None:
        """To its next step."""
        if self.is_called_off:
            self._end()
        else:
            self._over(lambda: next(self._way))

    def fail(self, error: Exception) -> None:
        """It meets a fault where it is."""
        if self._is_trying and not self.is_called_off:
            self._over(lambda: self._way.throw(error))

    def _over(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StopIteration:
            self.is_over = True
            self._generations.stopped(self.generation)

    def _end(self) -> None:
        is_building = self.may_proceed and self.generation.model is None
        if is_building and self._chance.random() < 0.5:
            self._generations.loaded(self.generation, self._make())
        self._way.close()
        self.is_over = True
        self._generations.stopped(self.generation)

    def _run(self) -> Generator[None, None, None]:
        yield
        while not (yield from self._try()):
            yield

    def _try(self) -> Generator[None, None, bool]:
        self._is_trying = True
        try:
            return (yield from self._bring_up())
        finally:
            self._is_trying = False

    def _bring_up(self) -> Generator[None, None, bool]:
        try:
            if self.generation.model is None:
                yield from self._get()
            with self.generation.use():
                yield
        except HalogenError as error:
            if isinstance(error, InternalError):
                raise
            self.may_proceed = self.has_room = self.generation.model is not None
            return self._generations.failed(self.generation, error)
        self._activate()
        return True

    def _get(self) -> Generator[None, None, None]:
        yield
        self.has_room = self._generations.takes_place(self.generation)
        if self.has_room:
            self._placed(self.generation)
        else:
            yield from self._room()
            self._generations.reached(self.generation, State.FETCHING)
        yield
        self._generations.reached(self.generation, State.VERIFYING)
        yield
        yield from self._room()
        yield
        self._generations.loaded(self.generation, self._make())

    def _room(self) -> Generator[None, None, None]:
        self.may_proceed = False
        self._generations.reached(self.generation, State.ALLOCATING)
        while not self.may_proceed:
            yield
