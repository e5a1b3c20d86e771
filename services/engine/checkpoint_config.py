"""How an engine takes a new artifact into service, unless the publish says otherwise."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.common.memory_guard import DEFAULT_RATIO
from services.common.registry.publish_records import SwapMode
from services.engine.swap_policy import SwapPolicy


class CheckpointConfig(BaseModel):
    """The section `checkpoint` of an engine's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: Literal["atomic_swap", "drain_then_load"] = Field(
        default="atomic_swap",
        description="atomic_swap loads beside what serves; drain_then_load lets that finish and go first, for machines "
        "without room for two: until the new one is ACTIVE this engine serves nothing of the model",
    )
    timeout_ms: int = Field(
        default=600_000,
        ge=1,
        le=86_400_000,
        description="milliseconds that a new artifact may take from ALLOCATING to ACTIVE, the wait for a drain included "
        "and the fetch after it not; then it is FAILED. What is served already is waited for without end",
    )
    max_drain_s: float = Field(
        default=0,
        ge=0,
        description="seconds that answers on replaced weights get to finish while new ones wait for their memory; then "
        "they end with REVISION_RETIRED. Never less than a ticket lives; 0 ends none",
    )
    fallback_on_failure: bool = Field(
        default=True,
        description="after a drain_then_load that failed, load again what gateways still route to; else nothing is "
        "loaded until a newer publish",
    )
    memory_guard_ratio: float = Field(
        default=DEFAULT_RATIO,
        gt=0,
        le=1,
        description="a model is refused if keys and values, its weights and copies of them would take more than this "
        "part of the memory of the control group, host or device",
    )

    @property
    def policy(self) -> SwapPolicy:
        """The same, as generations follow it."""
        return SwapPolicy(
            mode=SwapMode(self.strategy),
            timeout_s=self.timeout_ms / 1000,
            fallback_on_failure=self.fallback_on_failure,
            memory_guard_ratio=self.memory_guard_ratio,
        )
