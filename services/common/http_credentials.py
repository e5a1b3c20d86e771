"""What is shown to somebody else's HTTP server, and what it has to show: files that settings name."""

from __future__ import annotations

import ssl
from pathlib import Path

from services.common.errors import PreconditionFailed


def read_token(file: Path | None, setting: str) -> str:
    """The bearer token in the file that a setting names; empty where it names none.

    Raises:
        PreconditionFailed: It cannot be read, or is no token.
    """
    try:
        token = file.read_text(encoding="ascii").strip() if file else ""
    except (OSError, ValueError) as failure:
        what = failure.strerror if isinstance(failure, OSError) else "it is not ASCII"
        raise _unreadable(setting, what or "no file") from None
    if not token.isprintable():  # it would not fit into a header
        raise _unreadable(setting, "it is more than one line")
    return token


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


def _unreadable(setting: str, what: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{setting} cannot be read: {what}", reason=_reason(setting, "TOKEN_UNREADABLE")
    )


def _reason(setting: str, what: str) -> str:
    """For example STORE_TOKEN_UNREADABLE."""
    of = setting.lstrip("-").replace(".", "-").partition("-")[0]
    return f"{of.upper()}_{what}"
