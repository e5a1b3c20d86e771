"""`halogen qualify`: which artifact is meant, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli.console import CommandError
from services.cli.qualify import _local_id, _published_id, line
from tests.tiny_checkpoints import make_tiny_artifact

STATUS = pb.Status(
    cohorts=[
        pb.CohortStatus(model="m", cohort="stable", desired_artifact_id="a" * 64),
        pb.CohortStatus(model="m", cohort="canary", desired_artifact_id="b" * 64),
        pb.CohortStatus(model="gone", cohort="stable"),
    ]
)


def test_an_id_and_a_directory_are_known_here(tmp_path: Path) -> None:
    """Anything else is for the gateway to know."""
    artifact, manifest = make_tiny_artifact(tmp_path)
    assert "c" * 64 == _local_id("c" * 64)
    assert manifest.id == _local_id(str(artifact))
    assert "" == _local_id("m") == _local_id(str(tmp_path))


def test_a_model_is_what_its_cohort_shall_serve() -> None:
    """One that serves nothing, or is not there, is told."""
    assert "a" * 64 == _published_id(STATUS, "m", "stable")
    assert "b" * 64 == _published_id(STATUS, "m", "canary")
    for model in ("gone", "never"):
        with pytest.raises(CommandError, match=f"{model} is no artifact directory.*halogen status"):
            _published_id(STATUS, model, "stable")


def test_all_that_is_known_is_one_line() -> None:
    """What nobody said is left out."""
    bare = pb.Qualification(artifact_id="a" * 64, build="b" * 64, runtime_build="halogen/0.1.0 cpu")
    assert "aaaaaaaaaaaa on build bbbbbbbbbbbb, halogen/0.1.0 cpu" == line(bare)
    full = pb.Qualification(
        approved=False,
        accuracy=0.5,
        data_set="d",
        git_commit="c",
        probes=[pb.ProbeResult(name="warm_up", passed=True)],
    )
    full.MergeFrom(bare)
    assert line(
        bare
    ) + ", approval withdrawn, accuracy 0.5, data set d, git commit c, warm_up passed" == line(full)
