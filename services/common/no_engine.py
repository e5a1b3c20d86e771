"""NO_ENGINE, a scheduler's refusal: what it tells the gateway of the route that the request came by."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from services.common.errors import HalogenError
from services.common.ids import ArtifactId, Revision
from services.common.registry.records import Served

NO_ENGINE: Final = "NO_ENGINE"
_REVISION: Final = "served_revision"
_ARTIFACT: Final = "served_artifact_id"
_DRAINING: Final = "draining"


class NoEngine(NamedTuple):
    """Facts that go with the refusal, as metadata of the error.

    Attributes:
        served: What the model@cohort is served with by now, where that is newer than what the request was routed by.
        is_draining: Whether engines that have the artifact take nothing new on it: something newer is served, or they end.
    """

    served: Served | None = None
    is_draining: bool = False

    def metadata(self) -> dict[str, str]:
        told = {_DRAINING: "true"} if self.is_draining else {}
        if self.served:
            told |= {_REVISION: str(self.served.revision), _ARTIFACT: self.served.artifact_id or ""}
        return told

    @classmethod
    def told_by(cls, error: HalogenError) -> Self:
        """What `error` tells; nothing where it is another refusal, or one that cannot be read."""
        told = error.metadata if error.reason == NO_ENGINE else {}
        revision, artifact_id = told.get(_REVISION, ""), told.get(_ARTIFACT, "")
        is_draining = told.get(_DRAINING) == "true"
        if not revision.isdecimal():
            return cls(None, is_draining)
        served = Served(revision=Revision(int(revision)), artifact_id=ArtifactId(artifact_id) or None)
        return cls(served, is_draining)
