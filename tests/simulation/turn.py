"""What a node of the simulation is doing, driven by hand from one call of the registry to the next."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any

from services.common.errors import HalogenError, InternalError


@types.coroutine
def turn() -> Generator[None, None, None]:
    """A point where others go on first, as a call over the wire is."""
    yield


class Activity:
    """A coroutine that awaits nothing but `turn`; a refusal ends it as an answer does, a fault of ours is one.

    Args:
        coroutine: Runs up to its first turn at once.
    """

    def __init__(self, coroutine: Coroutine[None, None, Any]) -> None:
        self._coroutine = coroutine
        self.is_over = False
        self.go_on()

    def go_on(self) -> None:
        """Runs to its next turn or its end."""
        try:
            self._coroutine.send(None)
        except StopIteration:
            self.is_over = True
        except HalogenError as refusal:
            if isinstance(refusal, InternalError):
                raise
            self.is_over = True

    def kill(self) -> None:
        """Ends it where it is, as the death of its process does."""
        self._coroutine.close()
        self.is_over = True
