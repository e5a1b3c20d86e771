"""Who calls."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.common.auth.role import Role

MAX_NAME_CHARS: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Principal(NamedTuple):
    """A credential's holder.

    Attributes:
        name: The tenant, team or process; several credentials may have the same.
        role: What the credential is for.
    """

    name: str
    role: Role

    @classmethod
    def parse(cls, role: str, name: str) -> Principal:
        """Raises ValueError where there is no such role, or the name is none."""
        if role not in tuple(Role):
            raise ValueError(f"there is no role {role[:40]!r}; there are {', '.join(Role)}")
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            raise ValueError(
                f"{name[:80]!r} is no name: 1 to {MAX_NAME_CHARS} letters, digits, dots, dashes, underscores"
            )
        return cls(name, Role(role))


_caller: contextvars.ContextVar[Principal | None] = contextvars.ContextVar("caller", default=None)


def caller() -> Principal | None:
    """Who makes the call that is being answered here; None where callers are not asked."""
    return _caller.get()


@contextlib.contextmanager
def calling(principal: Principal) -> Iterator[None]:
    """The scope in which `principal` is the caller."""
    token = _caller.set(principal)
    try:
        yield
    finally:
        _caller.reset(token)
