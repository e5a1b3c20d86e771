"""Artifacts that this engine cannot serve: refused from their manifest alone, before the loader is asked for weights."""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import pytest

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.graph_hash import GraphHash
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import Hosts, Requirements
from services.common.errors import Overloaded, PreconditionFailed
from services.common.ids import ArtifactId
from services.common.memory_guard import guarded
from services.engine.loaded_model import PreparedArtifact
from services.engine.model.weights import DTypeChoice
from services.engine.suitability import SuitableOnly, check_suitable, offer_of
from tests.tiny_checkpoints import TinyShape, requirements_of

ANY = ArtifactId("a" * 64)
ARCHITECTURE = Architecture.from_config(TinyShape().config(), DType.BF16)
REQUIRES = requirements_of(ARCHITECTURE)


def manifest(**changes: object) -> Manifest:
    return Manifest(ARCHITECTURE, (), dataclasses.replace(REQUIRES, **changes))  # type: ignore[arg-type]


class Loader:
    """Has one manifest, and counts what it is asked to prepare."""

    def __init__(self, made: Manifest) -> None:
        self.made = made
        self.prepared: list[ArtifactId] = []

    async def manifest(self, artifact_id: ArtifactId) -> Manifest:
        return self.made

    async def prepare(self, artifact_id: ArtifactId) -> PreparedArtifact:
        self.prepared.append(artifact_id)
        raise NotImplementedError

    async def text_files(self, artifact_id: ArtifactId) -> dict[str, bytes]:
        raise NotImplementedError


UNFIT = {
    "another device": (manifest(hosts=Hosts(device_classes=("sm_90",))), "sm_90 is required, cpu is here"),
    "another runtime": (manifest(hosts=Hosts(runtime=">=99")), "runtime >=99 is required"),
    "another precision": (
        manifest(precisions=("fp8_e4m3",)),
        "precision fp8_e4m3 is required, bf16 or fp16 or fp32",
    ),
    "another input": (manifest(input_schema="pixels.v1"), "input schema pixels.v1 is required"),
    "another graph": (
        manifest(graph=GraphHash("f" * 64, REQUIRES.graph.architecture, REQUIRES.graph.tensors)),
        "does not know how to build that model: graph part topology .expected ffffffffffff, actual ",
    ),
}


# Turns red when: SuitableOnly.prepare asks the loader first, or check_suitable leaves one of its two checks out.
@pytest.mark.parametrize("case", UNFIT)
async def test_r_g5_what_this_engine_cannot_serve_is_never_prepared(case: str) -> None:
    """Device, runtime, precision, input and graph: named with what is required and what is here."""
    made, expected = UNFIT[case]
    loader = Loader(made)
    with pytest.raises(PreconditionFailed, match=expected):
        await SuitableOnly(loader, offer_of("auto")).prepare(ANY)
    assert [] == loader.prepared


async def test_what_memory_cannot_bear_is_never_prepared() -> None:
    """The loader is not asked for what could not be served.

    Fault injection: SuitableOnly.prepare asks the loader first.
    """
    loader = Loader(manifest())

    def refuse(_: Manifest) -> NoReturn:
        raise guarded("too much")

    with pytest.raises(Overloaded, match="too much"):
        await SuitableOnly(loader, offer_of("auto"), refuse).prepare(ANY)
    assert [] == loader.prepared


async def test_what_it_can_serve_is_prepared() -> None:
    """Nothing stands between the loader and an artifact as it is converted."""
    loader = Loader(manifest())
    with pytest.raises(NotImplementedError):
        await SuitableOnly(loader, offer_of("auto")).prepare(ANY)
    assert [ANY] == loader.prepared


@pytest.mark.parametrize(
    ("dtype", "stored", "taken"),
    [
        ("auto", "bf16", True),
        ("auto", "fp32", True),
        ("auto", "fp16", True),
        ("auto", "int8", False),
        ("bfloat16", "bf16", True),
        ("bfloat16", "fp16", False),
        ("bfloat16", "fp32", False),
        ("float32", "fp16", True),
        ("float32", "int8", False),
    ],
)
def test_an_engine_offers_the_precisions_that_it_can_bind(
    dtype: DTypeChoice, stored: str, taken: bool
) -> None:
    """What an engine was told to compute in decides."""
    requires: Requirements = dataclasses.replace(REQUIRES, precisions=(stored,))
    assert taken is not bool(requires.unmet(offer_of(dtype)))


def test_a_model_of_this_build_is_suitable() -> None:
    """The topology is the one that this build declares."""
    check_suitable(manifest(), offer_of("auto"))
