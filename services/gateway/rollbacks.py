"""Back to what was served before, under a higher revision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from services.common.errors import Conflict, NotFound, PreconditionFailed
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_progress import state_of
from services.common.registry.publish_records import CommitRecord, PublishState, Strategy
from services.common.registry.records import Serving
from services.common.registry.revisions import by_revision
from services.common.registry.store import Entry, Store
from services.gateway.publication_plan import PublishOrder, Seen
from services.gateway.publications import Publications, check_order

MIN_READY: Final = 1


class RollbackOrder(NamedTuple):
    """What a rollback asks for.

    Attributes:
        to_revision: One that was served; None takes the last with another artifact than now.
        expected_revision: None takes whatever stands.
    """

    model: ModelName
    cohort: Cohort
    to_revision: Revision | None
    expected_revision: Revision | None
    who: str
    why: str
    strategy: Strategy = Strategy()

    def naming(self, artifact_id: ArtifactId | None) -> PublishOrder:
        """The publish that it comes to: where not said otherwise, one engine that is ready ends what is to be left."""
        strategy = self.strategy.model_copy(update={"min_ready": self.strategy.min_ready or MIN_READY})
        return PublishOrder(
            self.model, self.cohort, artifact_id, self.expected_revision, self.who, self.why, strategy
        )


class RolledBack(NamedTuple):
    revision: Revision
    artifact_id: ArtifactId


class Committed(NamedTuple):
    """What was served under a revision."""

    revision: Revision
    record: CommitRecord


class Rollbacks:
    """Chooses among commits/, and publishes.

    Args:
        store: The registry.
        publications: Publish it.
    """

    def __init__(self, store: Store, publications: Publications) -> None:
        self._store = store
        self._publications = publications

    async def roll_back(self, order: RollbackOrder) -> RolledBack:
        """Names what was served before for the cohort; an artifact that engines still hold is served at once.

        Raises:
            NotFound: The model was never published, nothing else was served, or nothing under the revision that is
                asked for.
            PreconditionFailed: What was served before is just what a pending publish names, or the last publish has failed:
                what was served before it serves on.
            Conflict: Something else was served meanwhile: what was before that is another artifact.
            HalogenError: As `Publications.publish` says.
        """
        check_order(order.naming(None))
        serving = await self._store.get(
            keys.serving(order.model, order.cohort)
        )  # before what it is compared with
        entries = (await self._store.list(keys.commits(order.model))).entries
        committed = [Committed(*each) for each in by_revision(entries, CommitRecord).items()]
        if not committed and await self._store.get(keys.revision(order.model)) is None:
            raise NotFound(
                f"nothing was ever published as {order.model}; see what is: halogen status",
                reason="MODEL_NOT_FOUND",
            )
        artifact_id = chosen(order, committed, Serving.decode(serving.value) if serving else None)

        def check(seen: Seen) -> None:
            check_still_served(order, serving, seen)
            check_not_failed(order, seen)
            check_not_pending(order, artifact_id, seen)

        return RolledBack(await self._publications.publish(order.naming(artifact_id), check), artifact_id)


def chosen(order: RollbackOrder, committed: Iterable[Committed], serving: Serving | None) -> ArtifactId:
    """What is to be served again.

    Raises:
        NotFound: Nothing is.
    """
    now = serving.artifact_id if serving else None
    newest_first = sorted(committed, key=lambda each: each.revision, reverse=True)
    for revision, record in newest_first:
        is_meant = record.artifact_id != now if order.to_revision is None else revision == order.to_revision
        if record.cohort is order.cohort and is_meant:
            return record.artifact_id
    name = f"{order.model}@{order.cohort}"
    if order.to_revision is None:
        message = f"{name} has served {'no other artifact than now' if serving else 'nothing yet'}"
    else:
        message = f"{name} has not served revision {order.to_revision}"
    raise NotFound(
        f"{message}; see what was served: halogen history {order.model}", reason="NOTHING_TO_ROLL_BACK_TO"
    )


def check_still_served(order: RollbackOrder, chosen_at: Entry | None, seen: Seen) -> None:
    """Raises Conflict where a way back was chosen from something that is served no more.

    Two operators who mean the same way back then go it once: the second would come back to what both want to leave.
    """
    if order.to_revision is not None or _revision_of(chosen_at) == _revision_of(seen.serving):
        return
    expected, actual = _revision_of(chosen_at), _revision_of(seen.serving)
    raise Conflict(
        f"{order.model}@{order.cohort} serves revision {actual} by now, not {expected}, from which the way back was chosen; "
        f"look (halogen history {order.model}), and roll back again if that is still wanted",
        reason="REVISION_CONFLICT",
        metadata={"expected": expected, "actual": actual},
    )


def _revision_of(serving: Entry | None) -> str:
    return str(Serving.decode(serving.value).revision if serving else 0)


def check_not_failed(order: RollbackOrder, seen: Seen) -> None:
    """Raises PreconditionFailed where the last publish has failed: that is undone, and a way back would leave what is sound."""
    target, served = seen.named, seen.served
    is_chosen = order.to_revision is not None
    if is_chosen or target is None or target.failure is None or served is None or served.artifact_id is None:
        return
    raise PreconditionFailed(
        f"revision {target.revision} of {order.model}@{order.cohort} has failed, so revision {served.revision}, which was "
        "served before, stays and there is nothing to roll back; to go back further, or to have that loaded again, name a "
        f"revision (--to) of: halogen history {order.model}",
        reason="ROLLBACK_OF_FAILED",
    )


def check_not_pending(order: RollbackOrder, artifact_id: ArtifactId, seen: Seen) -> None:
    """Raises PreconditionFailed where a pending publish names what a rollback would go back to: it is no way back."""
    target = seen.named
    if order.to_revision is not None or target is None or target.artifact_id != artifact_id:
        return
    served = Serving.decode(seen.serving.value) if seen.serving else None
    if state_of(target, served) is not PublishState.PENDING:
        return
    raise PreconditionFailed(
        f"revision {target.revision} of {order.model}@{order.cohort}, which is pending, names what was served before, "
        f"artifact {artifact_id[:12]}; to stay with what is served: halogen abort {order.model}; to go back further, "
        f"name a revision (--to) of: halogen history {order.model}",
        reason="ROLLBACK_TO_PENDING",
    )
