"""What a record of the registry names, and for which part of a model's traffic."""

from __future__ import annotations

from typing import NamedTuple

from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry.publish_records import Strategy


class Pair(NamedTuple):
    """A part of a model's traffic."""

    model: ModelName
    cohort: Cohort


class Named(NamedTuple):
    """What a record names; no artifact: nothing. What has failed is wanted no more.

    strategy is the publish's; empty for what is served.
    """

    revision: Revision
    artifact_id: ArtifactId | None
    has_failed: bool = False
    strategy: Strategy = Strategy()


class Asked(NamedTuple):
    """The latest publish that names an artifact.

    Attributes:
        revision: Its revision of the pair's model.
        pair: What it is for.
        trace_parent: The publish's trace; empty where none is known.
    """

    revision: Revision
    pair: Pair
    trace_parent: str

    @property
    def as_event(self) -> dict[str, str | int]:
        """As logs have it."""
        return {"seq": self.revision, "model": self.pair.model, "cohort": self.pair.cohort}
