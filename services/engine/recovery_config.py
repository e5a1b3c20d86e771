"""What an engine may begin with before it has heard of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.common.cache_dir import default_cache_dir


class RecoveryConfig(BaseModel):
    """The section `recovery` of an engine's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_from_cache: Literal["never", "last_committed"] = Field(
        default="never",
        description="last_committed: at its start an engine loads at once what gateways used of it when it was last here, "
        "whether the registry (etcd) answers or not, and follows the registry from then on",
    )
    state_dir: Path = Field(
        default_factory=lambda: default_cache_dir() / "engine",
        description="directory that remembers it, for each engine by its id; it must outlive the engine",
    )
