"""`halogen qualify`: which artifact is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli.console import CommandError
from services.cli.qualify import _known_id, _local_id
from tests.tiny_checkpoints import make_tiny_artifact

STATUS = pb.Status(
    cohorts=[
        pb.CohortStatus(model="m", cohort="stable", desired_artifact_id="a" * 64),
        pb.CohortStatus(model="m", cohort="canary", desired_artifact_id="b" * 64),
        pb.CohortStatus(model="gone", cohort="stable"),
        pb.CohortStatus(model="b" * 8, cohort="stable", desired_artifact_id="a" * 64),
    ],
    artifacts=[pb.ArtifactStatus(model="m", artifact_id=digit * 64) for digit in "ab"],
)


def test_an_id_and_a_directory_are_known_here(tmp_path: Path) -> None:
    """Anything else is for the gateway to know."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    assert "c" * 64 == _local_id("c" * 64)
    assert manifest.id == _local_id(str(artifact))
    assert "" == _local_id("m") == _local_id(str(tmp_path))


def test_a_model_is_what_its_cohort_shall_serve() -> None:
    """One that serves nothing, or is not there, is told."""
    assert "a" * 64 == _known_id(STATUS, "m", "stable")
    assert "b" * 64 == _known_id(STATUS, "m", "canary")
    for model in ("gone", "never"):
        with pytest.raises(CommandError, match=f"{model} is no artifact directory.*halogen status"):
            _known_id(STATUS, model, "stable")


def test_an_artifact_is_known_by_the_beginning_of_its_id() -> None:
    """A model of that name comes first."""
    assert "b" * 64 == _known_id(STATUS, "b" * 9, "stable")
    assert "a" * 64 == _known_id(STATUS, "b" * 8, "stable")
