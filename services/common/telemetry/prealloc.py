"""The event that tells of memory which is taken before it is used."""

from __future__ import annotations

import mmap
from typing import Any

import structlog

log = structlog.get_logger(component="memory_pool")


def tell_prealloc(size_bytes: int, **more: Any) -> None:
    """Logs `memory_prealloc`: the size in bytes, and how many pages of the system's usual size that is.

    Args:
        size_bytes: What is taken.
        more: What it is for, and how it was taken.
    """
    log.info("memory_prealloc", size=size_bytes, pages=-(-size_bytes // mmap.PAGESIZE), **more)
