"""The weights of an artifact in the memory of one engine."""

from __future__ import annotations

from services.common.ids import ArtifactId
from tests.unit.engine.fakes import CountingModel


class SimModel(CountingModel):
    """Knows which artifact it is of, and whether it is in memory still."""

    def __init__(self, artifact_id: ArtifactId) -> None:
        super().__init__()
        self.artifact_id = artifact_id
        self.is_here = True
