"""What a process may be asked for by name, over and above whether it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple


class Checked(NamedTuple):
    """What a check has found.

    Attributes:
        is_sound: Whether the process does what the check is about.
        told: More of it, as JSON has it.
    """

    is_sound: bool
    told: Mapping[str, Any]


Checks = Mapping[str, Callable[[], Checked]]  # by name; called on the event loop, so they must not block
NO_CHECKS: Final[Checks] = MappingProxyType({})
