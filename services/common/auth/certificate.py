"""Who a client certificate says calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.common.auth.principal import Principal
from services.common.auth.reasons import CERTIFICATE_NAMES_NOBODY
from services.common.errors import Unauthenticated

SCHEME: Final = "halogen:"


def holder_of(uris: Iterable[str]) -> Principal:
    """The caller whom a certificate, which its authority vouches for, names in a URI ``halogen:ROLE/NAME``.

    Args:
        uris: Those among its subject's alternative names; others than ours say nothing.

    Raises:
        Unauthenticated: None of them names a caller, or not one alone does.
    """
    named = [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]
    try:
        (said,) = named
        role, _, name = said.partition("/")
        return Principal.parse(role, name)
    except ValueError:
        raise Unauthenticated(
            "the client certificate does not name one caller: give it a subject alternative name of the form URI:"
            "halogen:ROLE/NAME, or show a token",
            reason=CERTIFICATE_NAMES_NOBODY,
        ) from None
