"""A command's work, with its spans."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.common.ids import fresh_id
from services.common.telemetry.tracing import exporting

R = TypeVar("R")


def run_traced(work: Coroutine[Any, Any, R]) -> R:
    """Runs it in a loop of its own; its spans are exported where the environment asks for it."""
    with exporting("cli", fresh_id("cli")):
        return asyncio.run(work)
