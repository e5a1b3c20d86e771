"""What speaks against an artifact before more of it than its manifest is read."""

from __future__ import annotations

from typing import NamedTuple

from services.common.checkpoint.artifact_store import StoredArtifact
from services.common.checkpoint.requirements import Offer
from services.common.checkpoint.signatures import TrustedKeys


class Admittance(NamedTuple):
    """The terms on which this host takes artifacts.

    Attributes:
        runtime: The version of halogen here. What computes is for the engine to say.
        trust: Whose artifacts are taken.
    """

    runtime: str
    trust: TrustedKeys

    def check(self, stored: StoredArtifact) -> None:
        """Raises PreconditionFailed unless the artifact may be read here."""
        self.trust.check(stored.manifest.id, stored.signatures)
        stored.manifest.requires.check(Offer(self.runtime))
