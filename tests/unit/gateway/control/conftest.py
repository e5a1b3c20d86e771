"""A registry, a loader, and the control of them."""

from __future__ import annotations

import pytest

from services.gateway.control import Control
from tests.unit.gateway.control.builders import CutStore, Loader


@pytest.fixture
def store() -> CutStore:
    return CutStore()


@pytest.fixture
def loader() -> Loader:
    return Loader()


@pytest.fixture
def control(store: CutStore, loader: Loader) -> Control:
    return Control.on(store, loader.verify)
