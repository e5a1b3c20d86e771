"""Why a caller is not let in, for programs."""

from __future__ import annotations

from typing import Final

CREDENTIAL_MISSING: Final = "CREDENTIAL_MISSING"
TOKEN_UNKNOWN: Final = "TOKEN_UNKNOWN"  # noqa: S105  # a reason, no secret
ROLE_INSUFFICIENT: Final = "ROLE_INSUFFICIENT"
REFUSALS: Final = frozenset({CREDENTIAL_MISSING, TOKEN_UNKNOWN, ROLE_INSUFFICIENT})
