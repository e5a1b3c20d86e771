"""What the loaders of one host have in common: whose turn it is, and which files are there already."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId
from services.loader.directory_place import file_holding
from services.loader.place import Holding, Place, PlaceKind
from services.loader.shared_directory import SharedDirectory


class Commons:
    """The shared directories among some places.

    Args:
        places: Best first. Loaders of one configuration thus agree on the directory that has their turns.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = tuple(places)
        self._claims: dict[ArtifactId, Holding] = {}

    @contextlib.asynccontextmanager
    async def turn(self, artifact_id: ArtifactId) -> AsyncIterator[None]:
        """Waits for the turn to make an artifact's file, wherever it will lie, and holds it for the scope."""
        async with contextlib.AsyncExitStack() as scope:
            for _, directory in self._directories(make=True):
                await scope.enter_async_context(directory.turn(artifact_id))
                break
            yield

    def claim(self) -> tuple[ArtifactId, ...]:
        """Holds what loaders that are gone have left, until it is found or dropped; removes what they had begun."""
        for kind, directory in self._directories():
            directory.sweep()
            for name in directory.finished():
                if ARTIFACT_ID_PATTERN.fullmatch(name) and (held := directory.find(name)):
                    self.drop(ArtifactId(name))  # of two places the later one's counts
                    self._claims[ArtifactId(name)] = file_holding(kind, held)
        return tuple(self._claims)

    def find(self, artifact_id: ArtifactId) -> Holding | None:
        """The artifact's finished file, held, if there is one; the caller has the turn."""
        if claimed := self._claims.pop(artifact_id, None):
            return claimed
        for kind, directory in self._directories():
            if held := directory.find(artifact_id):
                return file_holding(kind, held)
        return None

    def drop(self, artifact_id: ArtifactId) -> None:
        """Gives up a claim that came to nothing; no error if there is none."""
        if claimed := self._claims.pop(artifact_id, None):
            claimed.release()

    def close(self) -> None:
        """Drops every claim."""
        for artifact_id in tuple(self._claims):
            self.drop(artifact_id)

    def _directories(self, *, make: bool = False) -> Iterator[tuple[PlaceKind, SharedDirectory]]:
        for place in self._places:
            try:
                directory = place.shared(make=make)
            except OSError:  # no such place: it says so when room is asked for
                continue
            if directory:
                yield place.kind, directory
