"""Why a caller is not let in, for programs."""

from __future__ import annotations

from typing import Final

CREDENTIAL_MISSING: Final = "CREDENTIAL_MISSING"
TOKEN_UNKNOWN: Final = "TOKEN_UNKNOWN"  # noqa: S105  # a reason, no secret
CERTIFICATE_NAMES_NOBODY: Final = "CERTIFICATE_NAMES_NOBODY"
ROLE_INSUFFICIENT: Final = "ROLE_INSUFFICIENT"
REFUSALS: Final = frozenset({CREDENTIAL_MISSING, TOKEN_UNKNOWN, CERTIFICATE_NAMES_NOBODY, ROLE_INSUFFICIENT})
