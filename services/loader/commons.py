"""What the loaders of one host have in common: whose turn it is, and which files are there already."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from services.loader.directory_place import file_holding
from services.loader.place import Holding, Place, PlaceKind
from services.loader.shared_directory import SharedDirectory
from services.loader.wanted import Wanted


class Commons:
    """The shared directories among some places.

    Args:
        places: Best first. Loaders of one configuration thus agree on the directory that has their turns.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = tuple(places)
        self._claims: dict[str, Holding] = {}

    @contextlib.asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        """Waits for the turn to make the file of that name, wherever it will lie, and holds it for the scope."""
        async with contextlib.AsyncExitStack() as scope:
            for _, directory in self._directories(make=True):
                await scope.enter_async_context(directory.turn(name))
                break
            yield

    def claim(self) -> tuple[str, ...]:
        """Holds the files of whole artifacts, in whatever layout, that loaders that are gone have left; returns their names.

        Each until it is found or dropped. What had been begun is removed. Files of ranks wait until somebody asks, or
        somebody needs their room.
        """
        for kind, directory in self._directories():
            directory.sweep()
            for name in directory.finished():
                if Wanted.of_name(name) and (held := directory.find(name)):
                    self.drop(name)  # of two places the later one's counts
                    self._claims[name] = file_holding(kind, held)
        return tuple(self._claims)

    def find(self, name: str) -> Holding | None:
        """The finished file of that name, held, if there is one; the caller has the turn."""
        if claimed := self._claims.pop(name, None):
            return claimed
        for kind, directory in self._directories():
            if held := directory.find(name):
                return file_holding(kind, held)
        return None

    def condemn(self, holding: Holding) -> None:
        """Takes the name of a file that proved wrong, whoever has it; the caller has the turn."""
        Path(holding.mapped_path).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Whether the file of that name is there or on its way, as far as can be told without the turn."""
        return any(directory.has(name) for _, directory in self._directories())

    def drop(self, name: str) -> None:
        """Gives up a claim that came to nothing; no error if there is none."""
        if claimed := self._claims.pop(name, None):
            claimed.release()

    def leave(self, name: str) -> None:
        """Gives up a claim that may come to something later; no error if there is none."""
        if claimed := self._claims.pop(name, None):
            claimed.let_go()

    def close(self) -> None:
        """Drops every claim."""
        for name in tuple(self._claims):
            self.drop(name)

    def _directories(self, *, make: bool = False) -> Iterator[tuple[PlaceKind, SharedDirectory]]:
        for place in self._places:
            try:
                directory = place.shared(make=make)
            except OSError:  # no such place: it says so when room is asked for
                continue
            if directory:
                yield place.kind, directory
