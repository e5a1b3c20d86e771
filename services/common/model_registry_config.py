"""An HTTP registry of models outside of halogen, as schedulers and loaders are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from yarl import URL

from services.common.errors import InvalidRequest
from services.common.http_url import http_url

TOKEN_SETTING = "--registry.token-file"  # noqa: S105  # the name of a setting
CA_SETTING = "--registry.ca-file"


class ModelRegistryConfig(BaseModel):
    """The section `registry`: the same for schedulers, which push to it, and loaders, which may fetch from it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    url: str = Field(
        default="",
        description="http(s) URL of a registry of models that is told what is served; nobody is told when empty",
    )
    token_file: Path | None = Field(
        default=None, description="file with a bearer token for it, read anew for each push; none when absent"
    )
    ca_file: Path | None = Field(
        default=None, description="its CA certificates (PEM), where it is https; the system's when absent"
    )
    timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="seconds after which a request to it is given up"
    )
    push: Literal["auto", "manual"] = Field(
        default="auto",
        description="what schedulers push: auto every commit, manual only what `halogen push` names",
    )
    push_tries: int = Field(
        default=8,
        ge=1,
        le=1000,
        description="tries after which a push has failed, until it is asked for again",
    )
    fallback_enabled: bool = Field(
        default=False,
        description="loaders ask it for artifacts that their store has not, below artifacts/ID/, in the background: "
        "whoever wants one is refused as before, and finds it in the cache once it has come",
    )
    fallback_limit_s: float = Field(
        default=3600.0, gt=0, description="seconds after which such a fetch is given up, however far it is"
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        try:
            if value:
                http_url(value, "registry", TOKEN_SETTING)
        except InvalidRequest as fault:
            raise ValueError(fault.message) from None
        return value

    @model_validator(mode="after")
    def _check_fallback(self) -> Self:
        if self.fallback_enabled and not self.url:
            raise ValueError("fallback_enabled needs url: the registry that is asked")
        return self

    @property
    def base(self) -> URL:
        """What everything of the registry lies below."""
        return http_url(self.url, "registry", TOKEN_SETTING)
