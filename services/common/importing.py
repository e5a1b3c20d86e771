"""Imports of much, faster: nothing of them is garbage, so Python need not look for any."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """What is imported in the scope is not looked through for garbage, neither meanwhile nor ever after.

    A quarter of a process's start, and more of an engine's with PyTorch, went into that.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
