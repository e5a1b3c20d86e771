"""The registry's records of a publish: what was asked for, how it ended, and what was committed."""

from __future__ import annotations

import enum

from services.common.ids import ArtifactId, Cohort, ProcessId, Revision
from services.common.registry.record import Record


class SwapMode(enum.StrEnum):
    """How an engine gets from what it serves to what is published."""

    ATOMIC_SWAP = "atomic_swap"  # beside what serves, which serves until the other is committed
    DRAIN_THEN_LOAD = (
        "drain_then_load"  # what serves finishes and goes first: an outage, and no room for two is needed
    )


class Strategy(Record):
    """How a publish is to be taken into service; what is None is as the servers have it.

    min_ready is how many engines must have it ACTIVE, at least 1; None is every one that answers now, unless it fails or
    its time is over. timeout_ms is how long an engine has from ALLOCATING to ACTIVE, and how long, from the first engine
    on that is ready, the others have. fallback_on_failure is whether an engine that has let go what it served loads it
    again when the publish fails; memory_guard_ratio the part of the memory that a load may fill, above 0 and at most 1.
    """

    mode: SwapMode | None = None
    min_ready: int | None = None
    timeout_ms: int | None = None
    fallback_on_failure: bool | None = None
    memory_guard_ratio: float | None = None


class Stage(enum.StrEnum):
    """Where on its way a publish failed."""

    UNSPECIFIED = "UNSPECIFIED"
    FETCH = "FETCH"
    DIGEST = "DIGEST"
    GRAPH = "GRAPH"
    GUARD = "GUARD"
    ALLOCATION = "ALLOCATION"
    WARM_UP = "WARM_UP"
    SWAP = "SWAP"
    COMMIT = "COMMIT"
    PUSH = "PUSH"
    TEXT = "TEXT"


class Failure(Record):
    """Why a publish could not be served; the reason (UPPER_SNAKE) is for programs, the message for people."""

    stage: Stage
    reason: str
    message: str


class PublishState(enum.StrEnum):
    """PENDING, until it ends once, in one of the others."""

    PENDING = "PENDING"
    APPLIED = "APPLIED"
    SUPERSEDED = "SUPERSEDED"
    FAILED = "FAILED"


class IntentRecord(Record):
    """intents/{model}/{revision}: what was asked for, and how it ended; the oldest go.

    The publish of a model@cohort that comes next ends one that is PENDING, as SUPERSEDED, in its own transaction; the
    leading scheduler alone ends it as APPLIED or FAILED. So at most one of a model@cohort is PENDING, and they end in
    the order of their revisions.
    """

    time: str  # RFC 3339, UTC
    who: str
    why: str
    cohort: Cohort
    artifact_id: ArtifactId | None  # None: unpublished
    old_artifact_id: ArtifactId | None  # what the cohort was to serve before
    strategy: Strategy = Strategy()
    state: PublishState = PublishState.PENDING
    failure: Failure | None = None
    superseded_by: Revision | None = None
    end_time: str = ""  # RFC 3339, UTC; empty while it is PENDING

    def ended(
        self,
        state: PublishState,
        time: str,
        *,
        failure: Failure | None = None,
        superseded_by: Revision | None = None,
    ) -> IntentRecord:
        """This one with its end. Only a PENDING one has none yet."""
        assert self.state is PublishState.PENDING
        end = {"state": state, "end_time": time, "failure": failure, "superseded_by": superseded_by}
        return self.model_copy(update=end)


class SyncStatus(enum.StrEnum):
    """How a commit stands in the registry of models outside: to be pushed, there, or not there and not tried any more."""

    PENDING = "pending"
    SYNCED = "synced"
    FAILED = "failed"


class CommitRecord(Record):
    """commits/{model}/{revision}: what was taken into service, with serving/ in one transaction; the oldest go.

    ready are the engines that had it ACTIVE, waiting_for those that were to have it and had not yet. What begins with
    registry_ is of the push to a registry of models: the commits that are pending are the leading scheduler's outbox.
    registry_sync_status is None where nothing is to be pushed; who and why are of the operator who asked for the last
    push, empty where it came with the commit.
    """

    time: str  # RFC 3339, UTC
    cohort: Cohort
    artifact_id: ArtifactId
    ready: tuple[ProcessId, ...]
    waiting_for: tuple[ProcessId, ...] = ()
    registry_sync_status: SyncStatus | None = None
    registry_failure: Failure | None = None
    registry_who: str = ""
    registry_why: str = ""

    def asked(self, who: str, why: str) -> CommitRecord:
        """This one, to be pushed (again)."""
        return self._with(SyncStatus.PENDING, registry_who=who, registry_why=why)

    def pushed(self, failure: Failure | None) -> CommitRecord:
        """This one, after its push."""
        return self._with(SyncStatus.FAILED if failure else SyncStatus.SYNCED, registry_failure=failure)

    def _with(self, status: SyncStatus, **more: object) -> CommitRecord:
        return self.model_copy(update={"registry_sync_status": status, "registry_failure": None, **more})
