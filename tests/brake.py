"""A hand on the engines of this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from services.engine.loaded_model import ModelOnArena


class Brake:
    """Holds every engine of this process before its next step, or lets them go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._free = threading.Event()
        self._free.set()
        forward = ModelOnArena.forward

        def braked(model: ModelOnArena, step: Any) -> Any:
            assert self._free.wait(60)
            return forward(model, step)

        monkeypatch.setattr(ModelOnArena, "forward", braked)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._free.clear()
        try:
            yield
        finally:
            self._free.set()
