"""What an engine can be told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field, field_validator

from services.common.config import CommaSeparated, HostPort, ProcessConfig
from services.common.cpu_list import parse_cpus
from services.common.errors import Unsupported
from services.common.processors import usable_processors
from services.common.ticket import TicketSigner
from services.engine.assignments import ServedPairs
from services.engine.checkpoint_config import CheckpointConfig
from services.engine.chunk_pace import BOUND_S
from services.engine.engine import STEP_TIMEOUT_S
from services.engine.host import memory_bytes
from services.engine.kernels.choice import KernelChoice, check_choice
from services.engine.kv_format import KvChoice
from services.engine.model.weights import DTypeChoice
from services.engine.recovery_config import RecoveryConfig

_DEFAULT_ARENA_BYTES: Final = 1 << 30
_MEMORY_SHARE: Final = 4  # the default arena takes at most this part of the memory


def _processors(settings: dict[str, Any]) -> int:
    """What a control group allows of the chosen ones."""
    return usable_processors(affinity=parse_cpus(settings.get("cpus", "")) or None)


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
    kv_swap_bytes: int = Field(
        256 << 20,
        ge=0,
        description="most memory for keys and values of requests that are set back for others, taken when it is needed, "
        "and kept free of loads until then; with 0 they are computed again",
    )
    kv_block_pool_autoscale: bool = Field(
        False,
        description="let --kv-arena-bytes be the least: more is taken while requests fill it, as far as the memory guard "
        "allows, and goes back to the host when they need it no more or memory is short there",
    )
    kv_block_pool_min_free_ratio: float = Field(
        0.03,
        ge=0,
        le=0.5,
        description="part of the memory for keys and values that is left to running requests that grow: it is never "
        "promised to new ones, and what is kept of earlier prompts goes before it reaches into it",
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    cpus: str = Field("", description="processors to run on, as in 0-3,8; all that we may when empty")
    threads: int = Field(
        default_factory=_processors,
        ge=1,
        description="threads that compute; one for each processor that we may use when not given",
    )
    chunk_tokens: int = Field(
        64,
        ge=1,
        description="most prompt tokens in one step, for which running answers wait (see --max-step-s); with fewer the "
        "weights are read more often",
    )
    max_step_s: float = Field(
        BOUND_S,
        gt=0,
        description="seconds that a step may take which running answers wait for: after a longer one fewer tokens of "
        "prompts go into the next, a block of them at least",
    )
    max_batch: int = Field(256, ge=1, description="most requests in one step; later ones wait")
    max_concurrent_requests: int = Field(
        256,
        ge=0,
        le=2**32 - 1,
        description="most requests taken in at once; later ones wait in the scheduler's queue; as many as memory allows "
        "when 0",
    )
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

    @field_validator("cpus")
    @classmethod
    def _check_cpus(cls, value: str) -> str:
        if foreign := parse_cpus(value) - os.sched_getaffinity(0):
            raise ValueError(f"this process may not run on {', '.join(map(str, sorted(foreign)))}")
        return value

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
