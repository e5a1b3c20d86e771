"""Who is let in, and to what."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.common.auth.certificate import holder_of
from services.common.auth.permissions import Roles, allowed
from services.common.auth.principal import Principal
from services.common.auth.reasons import CREDENTIAL_MISSING, ROLE_INSUFFICIENT
from services.common.auth.tokens import Tokens
from services.common.errors import PermissionDenied, Unauthenticated


class Access:
    """Knows callers by what they show, and what each of them may call.

    Args:
        tokens: Tells the bearer tokens that are taken now; None takes none.
        certificates: Whether a caller's certificate, which was checked already, is a credential.
    """

    def __init__(self, tokens: Callable[[], Tokens] | None = None, *, certificates: bool = False) -> None:
        self._tokens = tokens
        self._certificates = certificates

    def admit(self, method: str, token: str, uris: Callable[[], Iterable[str]]) -> Principal:
        """Who calls: the holder of the token, else of the certificate.

        Args:
            method: ``/package.Service/Method``, one that is not open to all.
            token: As it was shown; empty where none was.
            uris: Tells those of the certificate that was shown.

        Raises:
            Unauthenticated: There is no credential, or it is not known here.
            PermissionDenied: It is for another role; the message names the roles that may.
        """
        principal = self._principal(token, uris)
        roles = allowed(method)
        if principal.role not in roles:
            raise _denied(method, principal, roles)
        return principal

    def _principal(self, token: str, uris: Callable[[], Iterable[str]]) -> Principal:
        if token and self._tokens is not None:
            return self._tokens().holder(token)
        if self._certificates:
            return holder_of(uris())
        raise Unauthenticated(
            "this server asks for a credential: send `authorization: Bearer TOKEN` as metadata; the halogen command "
            "takes --token-file",
            reason=CREDENTIAL_MISSING,
        )


def _denied(method: str, principal: Principal, roles: Roles) -> PermissionDenied:
    named = method.rpartition(".")[2].replace("/", ".")
    needed = " or ".join(sorted(roles)) or "none: this build has no row for it"
    return PermissionDenied(
        f"{named} needs a credential of role {needed}; the one that was shown is of role {principal.role}",
        reason=ROLE_INSUFFICIENT,
        metadata={"role": principal.role, "needed": ",".join(sorted(roles))},
    )
