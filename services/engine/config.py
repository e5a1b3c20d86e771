"""What an engine can be told."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from pydantic import Field, field_validator

from services.common.config import CommaSeparated, HostPort, ProcessConfig
from services.common.errors import Unsupported
from services.common.ticket import TicketSigner
from services.engine.assignments import ServedPairs
from services.engine.checkpoint_config import CheckpointConfig
from services.engine.engine import STEP_TIMEOUT_S
from services.engine.host import memory_bytes, usable_cores
from services.engine.kernels.choice import KernelChoice, check_choice
from services.engine.kv_format import KvChoice
from services.engine.model.weights import DTypeChoice
from services.engine.recovery_config import RecoveryConfig

_DEFAULT_ARENA_BYTES: Final = 1 << 30
_MEMORY_SHARE: Final = 4  # the default arena takes at most this part of the memory


class EngineConfig(ProcessConfig):
    """An engine's settings."""

    role: ClassVar[str] = "engine"

    loader: HostPort = Field(description="host:port of the loader on this host")
    ticket_key_file: Path = Field(description="file with the key that schedulers sign tickets with")
    ticket_ttl_s: float = Field(
        10.0, gt=0, description="seconds that tickets live, as the schedulers have it; a drain lasts as long"
    )
    serves: CommaSeparated = Field(
        (), description="model or model@cohort, comma-separated; every model when empty"
    )
    kv_arena_bytes: int = Field(
        min(_DEFAULT_ARENA_BYTES, memory_bytes() // _MEMORY_SHARE),
        ge=1,
        description="memory for keys and values; 1 GiB or a quarter of the memory when not given",
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    threads: int = Field(
        usable_cores(), ge=1, description="threads that compute; the cores we may use when not given"
    )
    chunk_tokens: int = Field(
        64,
        ge=1,
        description="most prompt tokens in one step: running answers wait for all of them, and with fewer the weights"
        " are read more often",
    )
    max_batch: int = Field(256, ge=1, description="most requests under way at once; later ones wait")
    max_model_len: int = Field(
        0, ge=0, description="most tokens of prompt and answer together; what the model allows when 0"
    )
    dtype: DTypeChoice = Field(
        "auto",
        description="what to compute in; float32 copies weights stored in less, as auto does those in fp16",
    )
    kv_dtype: KvChoice = Field(
        "auto",
        description="what to store keys and values in; auto stores them in what is computed in, int8 in half of the"
        " memory of bf16 and a little more",
    )
    kernels: KernelChoice = Field(
        "auto",
        description="auto takes the fastest that this CPU can run; a set of kernels that it cannot run is refused",
    )
    prefix_cache: bool = Field(
        True, description="keep keys and values of prompts, while there is room, for those that begin alike"
    )
    step_timeout_s: float = Field(
        STEP_TIMEOUT_S,
        gt=0,
        description="seconds without a finished step, while there is work, that mean a frozen engine",
    )
    check_every_step: bool = Field(False, description="check the arena's books after every step")

    @field_validator("ticket_key_file")
    @classmethod
    def _check_key(cls, value: Path) -> Path:
        TicketSigner.from_file(value)
        return value

    @field_validator("kernels")
    @classmethod
    def _check_kernels(cls, value: KernelChoice) -> KernelChoice:
        try:
            check_choice(value)
        except Unsupported as refused:
            raise ValueError(refused.message) from None
        return value

    @field_validator("serves")
    @classmethod
    def _check_serves(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        ServedPairs.parse(value)
        return value
