"""What a process imports at its start: faster, as nothing of it is garbage, and with no more threads than processors."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

from services.common.library_threads import bound_library_threads
from services.common.processors import usable_processors


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """What is imported in the scope is not looked through for garbage, neither meanwhile nor ever after.

    A quarter of a process's start, and more of an engine's with PyTorch, went into that.
    """
    bound_library_threads(os.environ, usable_processors())
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
