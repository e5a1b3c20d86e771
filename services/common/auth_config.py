"""The settings that say who may call a process, and what it shows to those that it calls."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from services.common.auth.access import Access
from services.common.auth.tokens import Tokens
from services.common.reread_file import RereadFile
from services.common.rpc.address import Address
from services.common.rpc.credentials import Credentials, read_token


class AuthConfig(BaseSettings):
    """Settings of every process."""

    auth: Literal["auto", "off"] = Field(
        "auto",
        description="auto asks callers for a credential where callers_file is given, and must where the process listens "
        "beyond loopback; off lets everybody do everything",
    )
    callers_file: Path | None = Field(
        None,
        description="file of those who may call: lines of the form `role name sha256-of-token`, from halogen token; "
        "read again when it changes",
    )
    token_file: Path | None = Field(
        None,
        description="file with this process's own token, of role system, shown to the processes that it calls; read "
        "again when it changes",
    )

    @field_validator("callers_file")
    @classmethod
    def _check_callers(cls, value: Path | None) -> Path | None:
        if value is not None:
            Tokens.read(value)
        return value

    @field_validator("token_file")
    @classmethod
    def _check_token(cls, value: Path | None) -> Path | None:
        if value is not None:
            read_token(value)
        return value

    def check_listen(self, listen: Address) -> None:
        """Raises ValueError where more than this host could call, unasked who they are."""
        if self.auth == "auto" and self.callers_file is None and not listen.is_loopback:
            raise ValueError(
                f"listen {listen} is beyond loopback, and nothing says who may call: give --callers-file (lines are "
                "made by halogen token), or --auth off, where the network lets nobody else in"
            )

    @property
    def access(self) -> Access | None:
        """Who may call what; None where callers are not asked."""
        if self.auth == "off" or self.callers_file is None:
            return None
        return Access(RereadFile(self.callers_file, Tokens.read))

    @property
    def credentials(self) -> Credentials:
        """What this process shows."""
        return Credentials.of(token_file=self.token_file)
