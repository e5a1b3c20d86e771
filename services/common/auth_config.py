"""The settings that say who may call a process, and what it shows to those that it calls."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from services.common.auth.access import Access
from services.common.auth.role import Role
from services.common.auth.tls import RENEW_BEFORE, KeyPair, ServerTls, read_certificates
from services.common.auth.tokens import Tokens
from services.common.errors import Unauthenticated
from services.common.reread_file import RereadFile
from services.common.rpc.address import Address
from services.common.rpc.credentials import Credentials
from services.common.rpc.door import Door
from services.common.token_file import read_token


class AuthConfig(BaseSettings):
    """Settings of every process."""

    auth: Literal["auto", "off"] = Field(
        "auto",
        description="auto asks callers for a credential where callers_file or tls_client_ca_file is given, and one must be "
        "where the process listens beyond loopback; off lets everybody do everything",
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

    tls_cert_file: Path | None = Field(
        None,
        description="this process's certificate (PEM): turns TLS on for its callers, and is shown to the processes that "
        "it calls",
    )
    tls_key_file: Path | None = Field(None, description="the certificate's key (PEM)")
    tls_client_ca_file: Path | None = Field(
        None,
        description="CA certificates (PEM): every caller must show a certificate of theirs, whose alternative name "
        "URI:halogen:ROLE/NAME says who it is unless a token does",
    )
    tls_ca_file: Path | None = Field(
        None, description="CA certificates (PEM) of the processes that this one calls; they are called by TLS"
    )
    tls_server_name: str = Field(
        "", description="the name in the certificates of those; the host in their address when empty"
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

    def check_door(self, listen: Address) -> None:
        """Raises ValueError for files of TLS that are none, and where others than this host could call unasked."""
        _ = self.door, self.credentials
        named = self.callers_file or self.tls_client_ca_file
        if self.auth == "auto" and not named and not listen.is_loopback:
            raise ValueError(
                f"listen {listen} is beyond loopback, and nothing says who may call: give --callers-file (lines are "
                "made by halogen token) or --tls-client-ca-file, or --auth off where the network lets nobody else in"
            )

    @property
    def door(self) -> Door:
        """How callers come in; raises ValueError where a file cannot be read."""
        callers = RereadFile(self.callers_file, Tokens.read) if self.callers_file else None
        certificates = self.tls_client_ca_file is not None
        if self.auth == "off" or (callers is None and not certificates):
            return Door(tls=self._server_tls)
        access = Access(callers, certificates=certificates)
        return Door(access=access, callers=callers, tls=self._server_tls)

    def expiring(self, now: dt.datetime) -> dt.datetime | None:
        """When this process's certificate expires, if that is soon: it is not read again."""
        own = KeyPair.read(self.tls_cert_file, self.tls_key_file)
        return own.expires if own and own.expires - now < RENEW_BEFORE else None

    @property
    def credentials(self) -> Credentials:
        """What this process shows; raises ValueError where a file cannot be read."""
        own = (self.tls_cert_file, self.tls_key_file) if self.tls_ca_file else (None, None)
        return Credentials.of(
            token_file=self.token_file,
            ca_file=self.tls_ca_file,
            cert_file=own[0],
            key_file=own[1],
            server_name=self.tls_server_name,
        )

    @property
    def token_objection(self) -> str:
        """What other processes will have against this one's token, as far as its own callers file tells; else empty."""
        if self.callers_file is None or self.token_file is None:
            return ""
        try:
            holder = Tokens.read(self.callers_file).holder(read_token(self.token_file))
        except Unauthenticated:  # others may know it
            return ""
        if holder.role is Role.SYSTEM:
            return ""
        return (
            f"--token-file {self.token_file} is of {holder.name}, role {holder.role}, and the processes that this one "
            "calls let role system in; make such a token with: halogen token"
        )

    @property
    def _server_tls(self) -> ServerTls | None:
        own = KeyPair.read(self.tls_cert_file, self.tls_key_file)
        if own is None and self.tls_client_ca_file:
            raise ValueError("--tls-client-ca-file needs TLS: give --tls-cert-file and --tls-key-file")
        if own is None:
            return None
        if self.tls_client_ca_file is None:
            return ServerTls(own=own)
        return ServerTls(
            own=own, client_ca=read_certificates(self.tls_client_ca_file, "--tls-client-ca-file")
        )
