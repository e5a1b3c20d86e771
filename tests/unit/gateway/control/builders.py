"""Artifacts, engines, orders and stores for the tests of what operators do."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.manifest import PATHS, Manifest, ManifestFile, Role
from services.common.checkpoint.requirements import Hosts
from services.common.errors import (
    HalogenError,
)
from services.common.ids import ArtifactId, Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.registry.memory import MemoryStore
from services.common.registry.record import Record
from services.common.registry.records import EngineRecord, OfferRecord
from services.common.registry.store import Ambiguous, Delete, Put, Unchanged
from services.gateway.artifacts import ArtifactOrder, ArtifactProgress, Verified
from services.gateway.control import Control
from services.gateway.publication_plan import PublishOrder
from tests.tiny_checkpoints import requirements_of

MODEL = ModelName("m")
ARCHITECTURE = Architecture(
    model_type="llama",
    dtype=DType("bf16"),
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    vocab_size=32,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    tie_word_embeddings=True,
)


def manifest(digit: str) -> Manifest:
    """A well-formed manifest; another digit makes another artifact."""
    roles = (Role.CONFIG, Role.TOKENIZER, Role.WEIGHTS)
    files = [ManifestFile(path=PATHS[role], size_bytes=4096, sha256=digit * 64, role=role) for role in roles]
    return Manifest(
        ARCHITECTURE, tuple(sorted(files, key=lambda file: file.path)), requirements_of(ARCHITECTURE)
    )


class Loader:
    """Verifies in two steps, or fails as a test wishes."""

    def __init__(self) -> None:
        self.failure: HalogenError | None = None
        self.asked: list[ArtifactId] = []
        self.kept_nothing = False

    async def verify(
        self, artifact_id: ArtifactId, *, verify_only: bool = False
    ) -> AsyncGenerator[Verified, None]:
        self.asked.append(artifact_id)
        self.kept_nothing = verify_only
        yield Verified(1, 2)
        if self.failure:
            raise self.failure
        yield Verified(2, 2)


class CutStore(MemoryStore):
    """Applies the next transaction, or not, and then loses the connection."""

    cut: str = ""

    async def commit(self, conditions: Sequence[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        how, self.cut = self.cut, ""
        if how == "before":
            raise Ambiguous("cut")
        applied = await super().commit(conditions, writes)
        if how == "after":
            raise Ambiguous("cut")
        return applied


def artifact_order(text: bytes, **changes: Any) -> ArtifactOrder:
    order = ArtifactOrder(MODEL, text, b"", reverify=False, who="ada", why="test")
    return order._replace(**changes)


async def registered(control: Control, made: Manifest, **changes: Any) -> list[ArtifactProgress]:
    order = artifact_order(made.encode(), **changes)
    return [step async for step in control.artifacts.register(order)]


def order(
    artifact_id: str | None, *, expected: int | None = None, cohort: Cohort = Cohort.STABLE
) -> PublishOrder:
    revision = None if expected is None else Revision(expected)
    named = None if artifact_id is None else ArtifactId(artifact_id)
    return PublishOrder(MODEL, cohort, named, revision, who="ada", why="test")


async def read(store: MemoryStore, key: str, record: Callable[[bytes], Record]) -> Record:
    entry = await store.get(key)
    assert entry is not None
    return record(entry.value)


CPU = OfferRecord(
    runtime="0.1.0", device_class="cpu", precisions=("bf16", "fp32"), input_schemas=("token_ids.v1",)
)


def engine(offer: OfferRecord | None = CPU) -> EngineRecord:
    return EngineRecord(
        id=ProcessId("engine-a"),
        instance_id=InstanceId("engine-a-1"),
        address="127.0.0.1:1",
        host="h",
        start_time="2026-01-01T00:00:00Z",
        runtime_build="test/1",
        offer=offer,
    )


def for_sm_90() -> Manifest:
    requires = requirements_of(ARCHITECTURE, Hosts(device_classes=("sm_90",)))
    return dataclasses.replace(manifest("a"), requires=requires)
