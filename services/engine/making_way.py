"""What makes way for an artifact that is loaded only once what serves is gone. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from services.common.ids import ArtifactId, Revision
from services.common.registry.publish_records import SwapMode
from services.engine.named import Named, Pair
from services.engine.swap_policy import SwapPolicy


class MakingWay:
    """Asks what a publish by DRAIN_THEN_LOAD means for what its model@cohort has here.

    What other pairs name stays: another cohort's traffic is no concern of the publish.

    Args:
        targets: What pairs shall serve, kept up to date by the owner.
        serving: What gateways route to; the same.
        revisions: All that pairs have named, as long as it is here; the same.
        policy: Of publishes that do not say.
    """

    def __init__(
        self,
        targets: Mapping[Pair, Named],
        serving: Mapping[Pair, Named],
        revisions: Mapping[Pair, Mapping[ArtifactId, Revision]],
        policy: SwapPolicy,
    ) -> None:
        self._targets = targets
        self._serving = serving
        self._revisions = revisions
        self._policy = policy
        self._let_go: dict[Pair, Revision] = {}  # for which publish a pair's was let go last

    @property
    def candidates(self) -> set[ArtifactId]:
        """What is loaded only once others are gone."""
        return {it for pair in self._draining() if (it := self._targets[pair].artifact_id)}

    def for_(self, candidate: ArtifactId) -> set[ArtifactId]:
        """What is to be gone before the candidate is loaded; nothing for one that is loaded beside what serves."""
        pairs = {pair for pair in self._draining() if self._targets[pair].artifact_id == candidate}
        of_them = {it for pair in pairs for it in self._revisions.get(pair, ())}
        return of_them - self._named_beside(pairs)

    def yielding(self, waiting: Container[ArtifactId]) -> set[ArtifactId]:
        """What drains now: a candidate that has been found suitable waits for it.

        Args:
            waiting: Candidates that wait for room.
        """
        return {it for candidate in self.candidates if candidate in waiting for it in self.for_(candidate)}

    def withheld(self, failed: Container[ArtifactId]) -> set[ArtifactId]:
        """What is not to be loaded although gateways route to it: its place is another's, or nobody's for now.

        Args:
            failed: Candidates that have failed here.
        """
        pairs = {pair for pair in self._draining(also_failed=True) if self._is_withheld(pair, failed)}
        return {it for pair in pairs if (it := self._served(pair))} - self._named_beside(pairs)

    def note(self, gone: ArtifactId) -> None:
        """It begins to drain, for those that wait for it."""
        for pair in self._draining():
            if gone in self._revisions.get(pair, ()):
                self._let_go[pair] = self._targets[pair].revision

    def _is_withheld(self, pair: Pair, failed: Container[ArtifactId]) -> bool:
        target = self._targets[pair]
        if not (target.has_failed or target.artifact_id in failed):
            return True
        falls_back = self._policy.under(target.strategy).fallback_on_failure
        return not falls_back and self._let_go.get(pair) == target.revision

    def _draining(self, *, also_failed: bool = False) -> Iterator[Pair]:
        """Pairs whose publish drains first and is not served yet."""
        for pair, target in self._targets.items():
            served = self._serving.get(pair)
            is_newer = served is None or (
                target.revision > served.revision and target.artifact_id != served.artifact_id
            )
            drains = self._policy.under(target.strategy).mode is SwapMode.DRAIN_THEN_LOAD
            if target.artifact_id and is_newer and drains and (also_failed or not target.has_failed):
                yield pair

    def _served(self, pair: Pair) -> ArtifactId | None:
        return self._serving[pair].artifact_id if pair in self._serving else None

    def _named_beside(self, pairs: Container[Pair]) -> set[ArtifactId | None]:
        """Targets of any pair, and what gateways route other pairs to."""
        desired = {named.artifact_id for named in self._targets.values() if not named.has_failed}
        return desired | {named.artifact_id for pair, named in self._serving.items() if pair not in pairs}
