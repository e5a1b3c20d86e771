"""What a caller shows to servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from services.common.reread_file import RereadFile
from services.common.secret_file import read_secret


def _no_token() -> str:
    return ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Shown with every call of a channel.

    Attributes:
        token: Tells the bearer token; empty shows none.
    """

    token: Callable[[], str] = _no_token

    @classmethod
    def of(cls, *, token: str = "", token_file: Path | None = None) -> Self:
        """A token, or the file that it is in, which is read again when it changes.

        Raises:
            ValueError: Both are given, the file cannot be read, or there is nothing that can be sent as a token.
        """
        if token and token_file:
            raise ValueError("give a token or the file that it is in, not both")
        if token_file is not None:
            return cls(token=RereadFile(token_file, read_token))
        return cls(token=lambda: token) if token else cls()


NO_CREDENTIALS: Final = Credentials()


def read_token(path: Path) -> str:
    """The token in a file, which may end in a new line; raises ValueError where there is none."""
    token = read_secret(path, "--token-file").strip()
    if not token.isascii() or len(token.split()) != 1:
        raise ValueError(f"--token-file {path}: not one word of ASCII; make a token with: halogen token")
    return token.decode()
