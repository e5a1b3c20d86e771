"""The bearer tokens that a server takes, known by their digests only."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Self

from services.common.auth.principal import Principal
from services.common.auth.reasons import TOKEN_UNKNOWN
from services.common.errors import Unauthenticated
from services.common.secret_file import read_secret

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_TOKEN_BYTES: Final = 32
_PREFIX_BYTES: Final = 8


class _Entry(NamedTuple):
    digest: bytes
    holder: Principal


class Tokens:
    """Who holds which token.

    An entry is found by the first bytes of a token's digest, which tell nothing of the token, and compared whole in
    constant time.

    Args:
        entries: sha256 of each token, and its holder.
    """

    def __init__(self, entries: Iterable[tuple[bytes, Principal]]) -> None:
        self._entries: dict[bytes, list[_Entry]] = {}
        for entry in map(_Entry._make, entries):
            self._entries.setdefault(entry.digest[:_PREFIX_BYTES], []).append(entry)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a file of callers that names some; raises ValueError as `callers_in` does, and where it names none."""
        entries = callers_in(path)
        if not entries:
            raise ValueError(f"--callers-file {path} names nobody; make a token with: halogen token")
        return cls(entries)

    def holder(self, token: str) -> Principal:
        """Whose token it is; raises Unauthenticated where it is nobody's."""
        digest = digest_of(token)
        for entry in self._entries.get(digest[:_PREFIX_BYTES], ()):
            if hmac.compare_digest(entry.digest, digest):
                return entry.holder
        raise Unauthenticated(
            "the bearer token is not known here; ask an operator for one, or look whether it was replaced",
            reason=TOKEN_UNKNOWN,
        )


def callers_in(path: Path) -> list[tuple[bytes, Principal]]:
    """What the lines ``role name sha256-of-token`` of a file say; empty ones, and those that begin with #, say nothing.

    Raises:
        ValueError: It is missing, open to others, or has a line that is not of that form; the message names it.
    """
    lines = read_secret(path, "--callers-file").decode(errors="replace").splitlines()
    said = [(number, line.split()) for number, line in enumerate(lines, 1) if _says(line)]
    return [_entry(path, number, fields) for number, fields in said]


def digest_of(token: str) -> bytes:
    """What a server knows a token by: its sha256. Tokens are random and long, so that it can be told to nobody's use."""
    return hashlib.sha256(token.encode()).digest()


def fresh_token() -> str:
    """A token that nobody has: 256 random bits in letters, digits, dashes and underscores."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def line_of(holder: Principal, token: str) -> str:
    """What `Tokens.read` takes of it."""
    return f"{holder.role} {holder.name} {digest_of(token).hex()}"


def _says(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _entry(path: Path, number: int, fields: list[str]) -> tuple[bytes, Principal]:
    try:
        role, name, digest = fields
        if not _DIGEST.fullmatch(digest):
            raise ValueError("the third word is no sha256: 64 hexadecimal digits")
        return bytes.fromhex(digest), Principal.parse(role, name)
    except ValueError as fault:
        why = str(fault) if len(fields) == 3 else "give three words"
        raise ValueError(
            f"--callers-file {path}, line {number}: {why}; a line is: role name sha256"
        ) from None
