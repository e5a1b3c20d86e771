"""The registry's values, but for those of a publish's way (`publish_records`) and of builds (`qualification_records`)."""

from __future__ import annotations

import enum
from typing import Any, Final

from pydantic import field_validator

from services.common.ids import ArtifactId, Cohort, InstanceId, ModelName, ProcessId, Revision
from services.common.registry.publish_records import Failure, Strategy
from services.common.registry.record import Record, Revised


class ArtifactState(enum.StrEnum):
    PENDING = "PENDING"
    READY = "READY"
    REJECTED = "REJECTED"


class ArtifactRecord(Record):
    """artifacts/{model}/{artifact_id}; the manifest is never overwritten.

    signatures is the content of the artifact's file of signatures, empty where nobody vouches for it.
    """

    manifest: dict[str, Any]
    state: ArtifactState
    reason: str = ""
    signatures: str = ""


class ArtifactAuditRecord(Record):
    """artifact-audit/{model}/{artifact_id}/{number}: how a verification ended, and who asked for it.

    Never changed; the oldest go, but for every artifact's last.
    """

    time: str  # RFC 3339, UTC
    who: str
    why: str
    state: ArtifactState
    reason: str = ""


class LastRevision(Record):
    """revisions/{model}: compared and raised in every publish."""

    revision: Revision


class Served(Record):
    """What serving/ named at one moment; no artifact: nothing."""

    revision: Revision
    artifact_id: ArtifactId | None


class Target(Revised):
    """targets/{model}/{cohort}: what the cohort shall serve; no artifact says that it shall serve nothing.

    trace_parent (W3C trace context) is the publish's; those who act on the target go on with its trace. failure is
    said once, by the leading scheduler, and stands: engines then go back to what is served, until a newer revision.
    served is what serving/ named when the target was written, in one transaction: an engine may hear of the target
    before it hears of the commit that came first. None: nothing yet, or a gateway of an older version wrote it.
    """

    artifact_id: ArtifactId | None
    who: str
    why: str
    strategy: Strategy = Strategy()
    trace_parent: str = ""
    failure: Failure | None = None
    served: Served | None = None


class Serving(Revised):
    """serving/{model}/{cohort}: what gateways use, written once engines and gateways are ready for it.

    ready are the engines that had it ACTIVE then, to tell later whose absence is missed. No artifact says that the cohort was unpublished: the record stays, so that nobody takes an absent one for the
    wish to unload, nor a late writer an older revision for news.
    """

    artifact_id: ArtifactId | None
    ready: tuple[ProcessId, ...] = ()


class AuditRecord(Record):
    """audit/{model}/{revision}: never changed; the oldest go."""

    time: str  # RFC 3339, UTC
    who: str
    why: str
    cohort: Cohort
    old_artifact_id: ArtifactId | None
    new_artifact_id: ArtifactId | None  # None: unpublished


class GenerationState(enum.StrEnum):
    FETCHING = "FETCHING"
    VERIFYING = "VERIFYING"
    ALLOCATING = "ALLOCATING"
    WARMING = "WARMING"
    ACTIVE = "ACTIVE"
    DRAINING = "DRAINING"
    RETIRED = "RETIRED"
    FAILED = "FAILED"
    SUPERSEDED = "SUPERSEDED"

    @property
    def is_loading(self) -> bool:
        """Whether it may yet become ACTIVE for the first time."""
        return self in _LOADING

    @property
    def is_over(self) -> bool:
        """Whether nothing comes after it."""
        return self in _OVER


_LOADING: Final = frozenset(
    {
        GenerationState.FETCHING,
        GenerationState.VERIFYING,
        GenerationState.ALLOCATING,
        GenerationState.WARMING,
    }
)
_OVER: Final = frozenset({GenerationState.RETIRED, GenerationState.FAILED, GenerationState.SUPERSEDED})


class GenerationRecord(Record):
    """What one engine holds, or fails to hold, for one model@cohort.

    failure is there when it is FAILED; error, for people, tells that or what a load waits for. layout is how its weights
    lie once they are mapped, empty where as they are stored.
    """

    model: ModelName
    cohort: Cohort
    revision: Revision
    artifact_id: ArtifactId
    state: GenerationState
    error: str = ""
    failure: Failure | None = None
    layout: str = ""


class ProgressRecord(Record):
    """How far one engine is with one model@cohort; revisions are 0 where there is none.

    state is that of its latest generation, None where it holds none; state_version rises with every change of it.
    applied_sequence_id is the latest revision that gateways use and that is ACTIVE here, expected_next_id the one that is to
    be applied next. last_swap_time (RFC 3339, UTC) is by the engine's clock. last_error stands until a revision that is
    at least the one that failed is applied.
    """

    model: ModelName
    cohort: Cohort
    desired_revision: Revision
    actual_revision: Revision
    state: GenerationState | None
    state_version: int
    applied_sequence_id: Revision
    expected_next_id: Revision
    last_swap_duration_ms: int | None = None
    last_swap_time: str = ""
    last_error: Failure | None = None


class ProcessRecord(Record):
    """A live process, under its lease."""

    id: ProcessId
    instance_id: InstanceId
    address: str
    http_address: str = ""  # of probes and metrics
    host: str
    boot_id: str = ""  # of the kernel that it runs on; containers of one host have one
    start_time: str  # RFC 3339, UTC


class OfferRecord(Record):
    """What an engine offers to artifacts, to be compared with what they require.

    layout is how its loader is to lay out weights that can be, as ABI.ISA; empty: as they are stored.
    """

    runtime: str
    device_class: str
    precisions: tuple[str, ...]
    input_schemas: tuple[str, ...]
    layout: str = ""


class EngineRecord(ProcessRecord):
    """engines/{id}; serves: models and model@cohort pairs that it is for, all when empty; max_model_len: 0 is no bound."""

    runtime_build: str
    serves: tuple[str, ...] = ()
    offer: OfferRecord | None = None
    max_model_len: int = 0
    generations: tuple[GenerationRecord, ...] = ()
    progress: tuple[ProgressRecord, ...] = ()

    @field_validator("generations", "progress", mode="before")
    @classmethod
    def _leave_out_unknown(cls, value: Any) -> Any:
        return _known(value, state=(None, *GenerationState), cohort=tuple(Cohort))


class LoaderRecord(ProcessRecord):
    """loaders/{id}: where weights last went, and how they were read, both for people.

    fills_memory is whether what it prepares takes memory, and does not stay on a disk. weights are the names of the files
    in memory: an artifact's id, and after a dot its rank or layout if it has one; older loaders do not tell.
    """

    placement: str = ""
    reading: str = ""
    fills_memory: bool = True
    artifact_ids: tuple[ArtifactId, ...] = ()
    weights: tuple[str, ...] | None = None


class TextFailure(Record):
    """An artifact whose text side, tokenizer or chat template, a gateway cannot use.

    revision is the one under which the model's cohort had it when it was last tried; older writers say none.
    """

    artifact_id: ArtifactId
    error: str
    model: ModelName = ModelName("")
    cohort: Cohort = Cohort.STABLE
    revision: Revision = Revision(0)


class GatewayRecord(ProcessRecord):
    """gateways/{id}: artifact_ids are those whose text side is loaded; both are in order of the ids."""

    artifact_ids: tuple[ArtifactId, ...] = ()
    text_failures: tuple[TextFailure, ...] = ()

    @field_validator("text_failures", mode="before")
    @classmethod
    def _leave_out_unknown(cls, value: Any) -> Any:
        return _known(value, cohort=tuple(Cohort))


class SchedulerRecord(ProcessRecord):
    """schedulers/{id}: the term in which it leads, 0 while it stands by; whether it knows a registry to push to."""

    term: int = 0
    pushes: bool = False


def _known(entries: Any, **fields: tuple[str | None, ...]) -> Any:
    """Without those that have a value in one of `fields` which only newer builds know: the rest of what is said counts."""
    if not isinstance(entries, list):
        return entries
    return [
        each
        for each in entries
        if not isinstance(each, dict)
        or all(each.get(name, known[0]) in known for name, known in fields.items())
    ]
