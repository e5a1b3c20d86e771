"""The setting that says whose artifacts are taken, for the processes that take them."""

from __future__ import annotations

from pydantic import Field, field_validator

from services.common.checkpoint.signatures import TrustedKeys
from services.common.config import CommaSeparated, ProcessConfig


class TrustConfig(ProcessConfig):
    """Settings of a process that takes artifacts."""

    trusted_keys: CommaSeparated = Field(
        (),
        description="ed25519 public keys (64 hexadecimal digits each, from halogen keygen), comma-separated; with any, "
        "artifacts that none of them has signed are refused",
    )

    @field_validator("trusted_keys")
    @classmethod
    def _check_keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        TrustedKeys.parse(value)
        return value

    @property
    def trust(self) -> TrustedKeys:
        return TrustedKeys.parse(self.trusted_keys)
