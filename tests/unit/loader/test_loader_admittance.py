"""What a host does not take: refused when nothing but the manifest has been read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.conversion_options import ConversionOptions
from services.common.checkpoint.requirements import Hosts
from services.common.checkpoint.signatures import ANYBODY
from services.common.errors import CorruptData, HalogenError, PreconditionFailed
from services.common.ids import ArtifactId
from services.loader.admittance import Admittance
from services.loader.artifacts_in_place import ArtifactsInPlace
from services.loader.config import LoaderConfig
from services.loader.conversion import convert
from services.loader.directory_place import DirectoryPlace
from services.loader.metrics import LoaderMetrics
from services.loader.place import PlaceKind
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from tests.signing import key, signed_by, trusting
from tests.tiny_checkpoints import make_tiny_artifact


async def prepare(
    store: ArtifactStore, shm: Path, artifact_id: ArtifactId, admittance: Admittance
) -> HalogenError | None:
    """What it failed with, if it did."""
    places = (DirectoryPlace(PlaceKind.TMPFS, shm / "weights"),)
    metrics = LoaderMetrics(CollectorRegistry())
    async with Preparations(
        ArtifactsInPlace(store),
        places,
        reading=Reading(threads=2),
        keep_s=10.0,
        metrics=metrics,
        admit=admittance.check,
    ) as preparations:
        try:
            async for _ in preparations.prepare(artifact_id):
                pass
        except HalogenError as failure:
            return failure
    return None


def spoil_all(stored: StoredArtifact) -> None:
    """Every file but the manifest is garbage: whoever reads one finds out."""
    for file in stored.manifest.files:
        stored.path(file).chmod(0o644)
        stored.path(file).write_bytes(b"x" * file.size_bytes)


# Turns red when: Preparations._load asks `admit` after it has verified the small files.
async def test_r_g5_an_artifact_for_another_runtime_is_not_read(
    tmp_path: Path, store: ArtifactStore, shm: Path
) -> None:
    """Required and actual are named, and no file was opened."""
    source, manifest = make_tiny_artifact(tmp_path, options=ConversionOptions(runtime=">=0.2"))
    store.put(source)
    spoil_all(store.open(manifest.id))
    refusal = await prepare(store, shm, manifest.id, Admittance("0.1.0", ANYBODY))
    assert isinstance(refusal, PreconditionFailed)
    assert "runtime >=0.2 is required, 0.1.0 is here" in refusal.message
    assert isinstance(await prepare(store, shm, manifest.id, Admittance("0.2.0", ANYBODY)), CorruptData)


# Turns red when: Admittance.check leaves out one of its two checks.
async def test_what_nobody_trusted_has_signed_is_not_read(
    stored: StoredArtifact, store: ArtifactStore, shm: Path
) -> None:
    """Missing signature, wrong key, several keys: as the configuration says."""
    artifact_id, trusted = stored.manifest.id, Admittance("0.1.0", trusting(1, 2))
    for content in (b"", signed_by(artifact_id, 3)):
        if content:
            stored.write_signatures(content)
        refusal = await prepare(store, shm, artifact_id, trusted)
        assert refusal is not None
        assert "UNTRUSTED" == refusal.reason
    stored.write_signatures(signed_by(artifact_id, 2, 3))
    assert None is await prepare(store, shm, artifact_id, trusted)


def test_a_wrong_trusted_key_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody starts with a list of keys that trusts nobody or anybody by mistake."""
    with pytest.raises(SystemExit):
        LoaderConfig.load(["--store", "x", "--trusted-keys", f"{key(1).public_key},abc"])
    told = capsys.readouterr().err
    assert "--trusted-keys: 'abc' is no public key" in told
    assert 1 == len(told.splitlines())


def test_what_an_artifact_requires_is_what_was_asked_for(tmp_path: Path) -> None:
    """The converter writes it; an artifact that is converted again keeps it unless told otherwise."""
    narrow = ConversionOptions(runtime="<2", device_classes=("sm_90", "cpu"))
    source, manifest = make_tiny_artifact(tmp_path, options=narrow)
    assert Hosts("<2", ("cpu", "sm_90")) == manifest.requires.hosts
    again = convert(source, tmp_path / "again")
    assert manifest.id == again.id
    wide = convert(source, tmp_path / "wide", options=ConversionOptions(device_classes=()))
    assert dataclasses.replace(manifest.requires, hosts=Hosts("<2")) == wide.requires
