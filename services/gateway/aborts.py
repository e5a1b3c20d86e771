"""The end of a publish that is not served yet: the next revision names what is served."""

from __future__ import annotations

import contextlib

from services.common.errors import PreconditionFailed
from services.common.ids import Revision
from services.common.registry import keys
from services.common.registry.publish_progress import state_of
from services.common.registry.publish_records import PublishState
from services.common.registry.records import EngineRecord, GenerationState, Serving, Target
from services.common.registry.store import Store, Unchanged
from services.gateway.publication_plan import PublishOrder
from services.gateway.publications import Lost, Publications, check_order


class Aborts:
    """Aborts publishes.

    Args:
        store: The registry.
        publications: Publish what is served.
    """

    def __init__(self, store: Store, publications: Publications) -> None:
        self._store = store
        self._publications = publications

    async def abort(self, order: PublishOrder) -> Revision:
        """Ends the cohort's pending publish as SUPERSEDED by a revision that names what is served now, or nothing.

        Args:
            order: Names no artifact.

        Raises:
            PreconditionFailed: No publish is pending.
            HalogenError: As `Publications.publish` says.
        """
        check_order(order)
        return await self._publications.insist(order, lambda: self._attempt(order))

    async def _attempt(self, order: PublishOrder) -> Revision | Lost:
        """One try; lost when the publish has ended, or another has come, meanwhile."""
        target_key = keys.target(order.model, order.cohort)
        serving_key = keys.serving(order.model, order.cohort)
        target, serving = await self._store.get(target_key), await self._store.get(serving_key)
        served = Serving.decode(serving.value) if serving else None
        named = Target.decode(target.value) if target else None
        if target is None or named is None or state_of(named, served) is not PublishState.PENDING:
            raise await self._refusal(order, named, served)
        only_if = (
            Unchanged(target_key, target.mod_revision),
            Unchanged(serving_key, serving.mod_revision if serving else 0),
        )
        back = order._replace(artifact_id=served.artifact_id if served else None)
        return await self._publications.attempt(back, only_if)

    async def _refusal(
        self, order: PublishOrder, named: Target | None, served: Serving | None
    ) -> PreconditionFailed:
        """Says what there is instead."""
        how = ""
        if named and named.failure:
            how = f": revision {named.revision} has failed, {await self._what_serves(order, served)}"
        return PreconditionFailed(
            f"no publish of {order.model}@{order.cohort} is pending{how}; see: halogen history {order.model}",
            reason="NOTHING_TO_ABORT",
        )

    async def _what_serves(self, order: PublishOrder, served: Serving | None) -> str:
        if served is None or served.artifact_id is None:
            return "nothing is served"
        wanted = (order.model, order.cohort, served.artifact_id)
        for entry in (await self._store.list(keys.ENGINES)).entries:
            with contextlib.suppress(ValueError):  # a record that nobody can read
                for one in EngineRecord.decode(entry.value).generations:
                    if (one.model, one.cohort, one.artifact_id) == wanted and _serves(one.state):
                        return f"what is served is revision {served.revision}"
        return f"and no engine has revision {served.revision} any more: nothing serves, publish again"


def _serves(state: GenerationState) -> bool:
    """Now, or soon: what was let go for the other is loaded again."""
    return state is GenerationState.ACTIVE or state.is_loading
