"""How long prompt and answer may be together where an artifact is served: engines may allow less than its model."""

from __future__ import annotations

from collections.abc import Mapping

from services.common.ids import ArtifactId
from services.common.registry.records import EngineRecord, GenerationState


class Contexts:
    """Knows what engines allow.

    Args:
        engines: The mirror of engines/.
    """

    def __init__(self, engines: Mapping[str, EngineRecord]) -> None:
        self._engines = engines

    def tokens(self, artifact_id: ArtifactId, of_model: int) -> int:
        """The most of any engine that has the artifact ACTIVE; the model's own where none says less."""
        allowed = [
            engine.max_model_len or of_model
            for engine in self._engines.values()
            if _serves(engine, artifact_id)
        ]
        return min(of_model, max(allowed, default=of_model))


def _serves(engine: EngineRecord, artifact_id: ArtifactId) -> bool:
    held = (each for each in engine.generations if each.artifact_id == artifact_id)
    return any(each.state is GenerationState.ACTIVE for each in held)
