"""What a registry of models is told of a commit: the same bytes, however often it is told."""

from __future__ import annotations

from services.common.checkpoint import canonical
from services.common.ids import ModelName, Revision
from services.common.registry.publish_records import CommitRecord
from services.common.registry.records import ArtifactRecord


def push_document(
    model: ModelName, revision: Revision, commit: CommitRecord, artifact: ArtifactRecord
) -> bytes:
    """Canonical JSON: what was taken into service, when, and its manifest, of which artifact_id is the sha256.

    How the push itself goes is not in it, nor who of the engines was ready.
    """
    return canonical.encode(
        {
            "model": model,
            "revision": revision,
            "cohort": commit.cohort,
            "artifact_id": commit.artifact_id,
            "commit_time": commit.time,
            "manifest": artifact.manifest,
        }
    )
