"""The scheduling class of a thread (man 7 sched): ordinary, or behind everybody else's."""

from __future__ import annotations

import os


def turn_idle() -> bool:
    """Lets the calling thread run only where nobody else wants to; whether the kernel took it.

    For good: without a privilege there is no way back, so it is for threads that end with what they do.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return False
    return True


def is_idle() -> bool:
    """Whether the calling thread does."""
    return os.sched_getscheduler(0) == os.SCHED_IDLE
