"""Files that hold a bearer token."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from services.common.secret_file import SecretRefused, read_secret

_TOKEN: Final = re.compile(rb"[!-~]+")  # what fits into a header


def read_token(
    path: Path, setting: str = "--token-file", remedy: str = "make a token with: halogen token"
) -> str:
    """The token in a file, which may end in a new line.

    Args:
        path: The file.
        setting: Which setting names it, for messages.
        remedy: Where such a token comes from, for messages.

    Raises:
        SecretRefused: As `read_secret` says, or it holds no single word of ASCII.
    """
    token = read_secret(path, setting).strip()
    if not _TOKEN.fullmatch(token):
        raise SecretRefused(setting, path, f"not one word of ASCII; {remedy}")
    return token.decode()
