"""What a caller shows to servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from services.common.auth.tls import CallerTls, KeyPair, read_certificates
from services.common.reread_file import RereadFile
from services.common.token_file import read_token


def _no_token() -> str:
    return ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Shown with every call of a channel.

    Attributes:
        token: Tells the bearer token; empty shows none.
        tls: None calls in the clear.
    """

    token: Callable[[], str] = _no_token
    tls: CallerTls | None = None

    @classmethod
    def of(
        cls,
        *,
        token: str = "",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        server_name: str = "",
    ) -> Self:
        """From what a user says.

        Args:
            token: A bearer token.
            token_file: The file that it is in, which is read again when it changes.
            ca_file: Certificates of the authority that vouches for servers (PEM); turns TLS on.
            cert_file: Our own certificate, for servers that ask for one (PEM).
            key_file: Its key (PEM).
            server_name: As `CallerTls` says.

        Raises:
            ValueError: A file cannot be read, or holds another thing; the message names its setting.
        """
        if token and token_file:
            raise ValueError("give a token or the file that it is in, not both")
        shown = RereadFile(token_file, read_token) if token_file else (lambda: token)
        if ca_file is None:
            if cert_file or key_file or server_name:
                raise ValueError("TLS towards servers needs --tls-ca-file, whose certificates vouch for them")
            return cls(token=shown)
        ca, own = read_certificates(ca_file, "--tls-ca-file"), KeyPair.read(cert_file, key_file)
        return cls(token=shown, tls=CallerTls(ca=ca, own=own, server_name=server_name))


NO_CREDENTIALS: Final = Credentials()
