"""What all tests share: the demo model, and a look for what a test leaves running."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from services.cli import demo
from services.cli.home import Home
from tests.brake import Brake

REPOSITORY = Path(__file__).parents[1]
MODELS = Path(__file__).parent / "models"

settings.register_profile("halogen", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("halogen")


@pytest.fixture(scope="session")
def smollm2() -> demo.DemoModel:
    """SmolLM2-135M-Instruct, as a Hugging Face directory and as an artifact; fetched once per checkout."""
    root = os.environ.get("HALOGEN_TEST_HOME") or REPOSITORY / ".halogen"
    home = Home(Path(root))
    home.make()
    return demo.ensure(home.models)


@pytest.fixture(scope="session")
def smollm2_artifact(smollm2: demo.DemoModel) -> Path:
    return smollm2.artifact


@pytest.fixture(autouse=True)
def _look_for_leaks(request: pytest.FixtureRequest) -> None:
    """Every asynchronous test ends with no task of its own running."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_leaked_tasks")


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    running = asyncio.all_tasks() - before - {asyncio.current_task()}
    if running:  # grpc's own tasks end a few turns of the loop after the call that they served
        _, running = await asyncio.wait(running, timeout=5)
    assert set() == running, "the test ends while tasks are running"


@pytest.fixture
def signals_as_in_a_terminal() -> Iterator[None]:
    """Started programs hear SIGINT and SIGHUP, which those of a background job are born to ignore."""
    heard: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Brake:
    return Brake(monkeypatch)
