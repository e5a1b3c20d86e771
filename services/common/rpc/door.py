"""How callers come into a server."""

from __future__ import annotations

import dataclasses
from typing import Final

from services.common.auth.access import Access
from services.common.auth.tls import ServerTls
from services.common.auth.tokens import Tokens
from services.common.reread_file import RereadFile


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What is asked of them.

    Attributes:
        access: Who may call what; None lets everybody do everything.
        callers: The file that says so, where one does.
        tls: None takes calls in the clear.
    """

    access: Access | None = None
    callers: RereadFile[Tokens] | None = None
    tls: ServerTls | None = None


OPEN: Final = Door()
