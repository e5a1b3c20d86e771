"""How an engine takes a new artifact into service, unless the publish says otherwise."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from services.common.memory_guard import DEFAULT_RATIO


class CheckpointConfig(BaseModel):
    """The section `checkpoint` of an engine's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout_ms: int = Field(
        default=600_000,
        ge=1,
        le=86_400_000,
        description="milliseconds that a new artifact may take from ALLOCATING to ACTIVE, the wait for a drain included; "
        "then it is FAILED. What is served already is waited for without end",
    )
    memory_guard_ratio: float = Field(
        default=DEFAULT_RATIO,
        gt=0,
        le=1,
        description="a model is refused if keys and values, its weights and copies of them would take more than this "
        "part of the memory of the control group, host or device",
    )
