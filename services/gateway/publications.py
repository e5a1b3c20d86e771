"""What a cohort shall serve, named by compare-and-set, as `publication_plan` decides."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import structlog

from services.common.backoff import Backoff
from services.common.checkpoint import canonical
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.signatures import TrustedKeys
from services.common.errors import Conflict, NotFound, PreconditionFailed
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import ArtifactRecord, ArtifactState, LastRevision
from services.common.registry.store import Ambiguous, Entry, Store, Unchanged
from services.common.telemetry.attributes import ARTIFACT_ID, COHORT, MODEL, REVISION
from services.common.telemetry.tracing import annotate, trace_parent
from services.gateway.operator_words import check_words, checked_artifact_id, checked_model_name
from services.gateway.publication_audit import MAX_DROPPED_OF_KIND, export, is_full
from services.gateway.publication_plan import (
    PublishOrder,
    Seen,
    Transaction,
    next_revision,
    plan,
    target_of,
)

log = structlog.get_logger()

TRIES: Final = 16


class Lost(NamedTuple):
    """A compare-and-set that somebody else came before; `follows` is the revision that it was to come after."""

    follows: Revision


class Publications:
    """Publishes and unpublishes; calls no engine.

    Args:
        store: The registry.
        known: The highest revision of a model that anybody knows of, should the registry have lost its own.
        check_plan: Raises PreconditionFailed when no engine could serve what an artifact requires.
        trust: Whose artifacts are taken.
        retries: Says how long to pause before each next try of one publish.
    """

    def __init__(
        self,
        store: Store,
        known: Callable[[ModelName], Revision],
        check_plan: Callable[[Requirements], None],
        trust: TrustedKeys,
        retries: Callable[[], Backoff] = lambda: Backoff(first_s=0.02, most_s=0.2),
    ) -> None:
        self._store = store
        self._known = known
        self._check_plan = check_plan
        self._trust = trust
        self._retries = retries
        self._turns: WeakValueDictionary[ModelName, asyncio.Lock] = WeakValueDictionary()

    async def publish(self, order: PublishOrder, check: Callable[[Seen], None] = lambda _: None) -> Revision:
        """Names the artifact that a cohort shall serve, or none, under the model's next revision.

        What is unpublished is withdrawn from gateways in the same transaction; engines drain it and let it go.

        Args:
            order: The publish.
            check: Raises a HalogenError where it is not to come after what stands.

        Raises:
            InvalidRequest: The model's name, the artifact's id, who or why is not valid.
            NotFound: The artifact is not registered for this model, or there is nothing to unpublish.
            PreconditionFailed: The artifact is not READY, nobody trusted has signed it, or no engine that is there
                could serve it.
            Conflict: The model's revision is not the expected one, or other publishes keep winning.
        """
        check_order(order)
        return await self.insist(order, lambda: self.attempt(order, check=check))

    async def insist(
        self, order: PublishOrder, attempt: Callable[[], Awaitable[Revision | Lost]]
    ) -> Revision:
        """Tries until it comes first, a bounded number of times; here one after the other, elsewhere others compete.

        Raises:
            Conflict: Others kept coming first.
            HalogenError: As `attempt` does.
        """
        lost, backoff = Lost(Revision(0)), self._retries()
        async with self._turns.setdefault(order.model, asyncio.Lock()):
            for _ in range(TRIES):
                outcome = await attempt()
                if not isinstance(outcome, Lost):
                    return outcome
                lost = outcome
                await backoff.pause()
        raise await self._outpaced(order, lost)

    async def attempt(
        self,
        order: PublishOrder,
        only_if: tuple[Unchanged, ...] = (),
        check: Callable[[Seen], None] = lambda _: None,
    ) -> Revision | Lost:
        """One compare-and-set; lost when somebody else's write came between, also to what `only_if` names.

        Raises:
            HalogenError: As `publish` says.
        """
        seen = await self._look(order.model, order.cohort)
        revision = next_revision(order, seen, self._known(order.model))
        lost = Lost(Revision(revision - 1))
        if seen.is_behind(revision):
            return lost
        check(seen)
        artifact = (
            await self._ready(order.model, order.artifact_id) if order.artifact_id is not None else None
        )
        due = plan(
            order,
            seen,
            artifact,
            revision=revision,
            time=dt.datetime.now(dt.UTC).isoformat(),
            trace_parent=trace_parent(),
        )
        if not await self._commit(due, only_if):
            return lost
        _tell(order, due)
        return revision

    async def _outpaced(self, order: PublishOrder, lost: Lost) -> Conflict:
        """What somebody is told whose every try was lost: what the last one was to follow, and what stands by now."""
        entry = await self._store.get(keys.revision(order.model))
        now = LastRevision.decode(entry.value).revision if entry else Revision(0)
        return Conflict(
            f"others who publish {order.model} keep coming first: the last try was to follow revision {lost.follows}, now "
            f"it is at {now}; try again",
            metadata={"expected": str(lost.follows), "actual": str(now)},
            retry_after_s=1.0,
        )

    async def _look(self, model: ModelName, cohort: Cohort) -> Seen:
        last = await self._store.get(keys.revision(model))
        target = await self._store.get(keys.target(model, cohort))
        named = target_of(target)
        return Seen(
            last=last,
            target=target,
            serving=await self._store.get(keys.serving(model, cohort)),
            audits=await self._store.head(keys.audits(model), MAX_DROPPED_OF_KIND),
            intents=await self._intents(model),
            intent=await self._store.get(keys.intent(model, named.revision)) if named else None,
        )

    async def _intents(self, model: ModelName) -> tuple[Entry, ...]:
        """All of a model where some go with one more; they are many, and else nobody looks at them."""
        prefix = keys.intents(model)
        return (await self._store.list(prefix)).entries if is_full(await self._store.head(prefix, 1)) else ()

    async def _commit(self, due: Transaction, only_if: tuple[Unchanged, ...]) -> bool:
        try:
            return await self._store.commit((*due.conditions, *only_if), due.writes)
        except Ambiguous:  # the audit record, which nobody else writes alike, tells
            record = await self._store.get(due.audit.key)
            return record is not None and record.value == due.audit.value

    async def _ready(self, model: ModelName, artifact_id: ArtifactId) -> Entry:
        """The artifact's record, which says that it is READY."""
        entry = await self._store.get(keys.artifact(model, artifact_id))
        if entry is None:
            raise NotFound(
                f"model {model} has no artifact {artifact_id!r}; register it first, "
                "for example with: halogen publish MODEL DIRECTORY",
                reason="ARTIFACT_UNKNOWN",
            )
        self._check(artifact_id, ArtifactRecord.decode(entry.value))
        return entry

    def _check(self, artifact_id: ArtifactId, record: ArtifactRecord) -> None:
        """Raises PreconditionFailed unless it is READY, and still wanted: keys and engines may be others by now."""
        if record.state is not ArtifactState.READY:
            raise PreconditionFailed(
                f"artifact {artifact_id[:12]} is {record.state}, not READY. {record.reason}".rstrip(),
                reason="ARTIFACT_NOT_READY",
                metadata={"state": record.state},
            )
        self._trust.check(artifact_id, record.signatures.encode("ascii"))
        self._check_plan(Manifest.decode(canonical.encode(record.manifest)).requires)


def check_order(order: PublishOrder) -> None:
    """Raises InvalidRequest where names or words are not valid."""
    checked_model_name(order.model)
    if order.artifact_id is not None:
        checked_artifact_id(order.artifact_id)
    check_words(order.who, order.why)


def _tell(order: PublishOrder, done: Transaction) -> None:
    named = {MODEL: order.model, COHORT: order.cohort, ARTIFACT_ID: order.artifact_id or ""}
    annotate({**named, REVISION: done.revision})
    told = {**order._asdict(), "strategy": order.strategy.model_dump(exclude_none=True)}
    log.info("unpublished" if order.artifact_id is None else "published", revision=done.revision, **told)
    export("audit_exported", done.audits)
    export("intent_exported", done.intents)
