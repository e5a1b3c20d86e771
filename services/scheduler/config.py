"""What a scheduler can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from services.common.config import HostPort, ProcessConfig
from services.common.model_registry_config import ModelRegistryConfig
from services.common.registry.publish_records import SyncStatus
from services.common.rpc.address import Address
from services.common.ticket import TicketSigner
from services.common.watermark import Bounds
from services.scheduler.admission import Limits


def _readable_key(path: Path) -> Path:
    TicketSigner.from_file(path)
    return path


class SchedulerConfig(ProcessConfig):
    """The scheduler's settings."""

    role: ClassVar[str] = "scheduler"

    listen: HostPort = Field(
        Address("127.0.0.1", 50052), description="host:port to bind; port 0 takes a free one"
    )
    ticket_key_file: Annotated[Path, AfterValidator(_readable_key)] = Field(
        description="file with the key that engines check tickets by"
    )
    ticket_ttl_s: float = Field(
        10.0, gt=0, le=300, description="seconds within which a ticket must be redeemed"
    )
    election_ttl_s: int = Field(
        5, ge=2, le=300, description="seconds after which a silent leader is replaced by another scheduler"
    )
    commit_timeout_s: float = Field(
        600.0,
        gt=0,
        description="seconds that a publish which some engines are ready for waits for as many as it asks for, and has "
        "FAILED then; or, where it does not say how many, for all that answer now",
    )
    registry: ModelRegistryConfig = ModelRegistryConfig()
    queue_requests: int = Field(1024, ge=0, description="most requests that may wait for a ticket")
    queue_prompt_tokens: int = Field(
        262_144, ge=0, description="most prompt tokens, over all requests, that may wait"
    )
    queue_wait_s: float = Field(
        60.0,
        ge=0,
        description="longest that a newcomer may have to wait for a ticket, by how fast those before it go; who would "
        "wait longer is told when to come back; 0 for any time",
    )
    unstarted_prefill_tokens: int = Field(
        4096, ge=1, description="usual bound, per engine, on prompt tokens granted and not yet begun"
    )
    soft_watermark: float = Field(0.75, description="occupancy above which half of the usual is granted")
    hard_watermark: float = Field(0.90, description="occupancy above which nothing is granted")
    soft_release: float = Field(0.70, description="occupancy below which the soft watermark ends")
    hard_release: float = Field(
        0.85, validate_default=True, description="occupancy below which the hard watermark ends"
    )

    @field_validator("hard_release")
    @classmethod
    def _ordered(cls, hard_release: float, others: ValidationInfo) -> float:
        """Checks the four together: this is the last of them."""
        marks = {"soft": "soft_watermark", "hard": "hard_watermark", "soft_release": "soft_release"}
        if set(marks.values()) <= others.data.keys():  # else one of them is reported by itself
            named = {name: others.data[field] for name, field in marks.items()}
            Bounds(**named, hard_release=hard_release)
        return hard_release

    @property
    def sync_status(self) -> SyncStatus | None:
        """How commits stand in the registry of models from their beginning."""
        return SyncStatus.PENDING if self.registry.url and self.registry.push == "auto" else None

    @property
    def bounds(self) -> Bounds:
        return Bounds(
            soft=self.soft_watermark,
            hard=self.hard_watermark,
            soft_release=self.soft_release,
            hard_release=self.hard_release,
        )

    @property
    def limits(self) -> Limits:
        return Limits(
            unstarted_tokens=self.unstarted_prefill_tokens,
            ticket_ttl_ns=int(self.ticket_ttl_s * 1e9),
            queue_wait_ns=int(self.queue_wait_s * 1e9),
        )
