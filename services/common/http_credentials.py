"""What is shown to somebody else's HTTP server, and what it has to show: files that settings name."""

from __future__ import annotations

import ssl
from pathlib import Path

from services.common.errors import PreconditionFailed
from services.common.secret_file import SecretRefused
from services.common.token_file import read_token


def token_in(file: Path | None, setting: str) -> str:
    """The bearer token in the file that a setting names; empty where it names none.

    Raises:
        PreconditionFailed: It cannot be read, others may read it, or it holds no token.
    """
    try:
        return read_token(file, setting, "put the server's token there") if file else ""
    except SecretRefused as fault:
        raise PreconditionFailed(
            f"{setting} cannot be used: {fault.why}", reason=_reason(setting, "TOKEN_UNREADABLE")
        ) from None


def trusted(ca_file: Path | None, setting: str) -> ssl.SSLContext | bool:
    """The certificates in the file that a setting names, or, where it names none, True: those of the system.

    Raises:
        PreconditionFailed: It cannot be read.
    """
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as failure:
        raise PreconditionFailed(
            f"{setting} cannot be read: {failure.strerror or 'not certificates in PEM'}",
            reason=_reason(setting, "CA_UNREADABLE"),
        ) from None


def _reason(setting: str, what: str) -> str:
    """For example STORE_TOKEN_UNREADABLE."""
    of = setting.lstrip("-").replace(".", "-").partition("-")[0]
    return f"{of.upper()}_{what}"
