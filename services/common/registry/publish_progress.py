"""How far engines and gateways are with a target. Pure: the leading scheduler acts on it, gateways show it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, Revision
from services.common.registry.publish_records import PublishState
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    GenerationRecord,
    GenerationState,
    Serving,
    Target,
    TextFailure,
)

MIN_READY: Final = 1  # engines, for publishes that do not say


class Failed(NamedTuple):
    """An engine that could not load it."""

    id: ProcessId
    held: GenerationRecord


class Unread(NamedTuple):
    """A gateway that cannot use its tokenizer or chat template."""

    id: ProcessId
    failure: TextFailure


class PublishProgress(NamedTuple):
    """Of one target that names an artifact; all in order of the ids.

    Attributes:
        engines: Live ones that are for the cohort.
        ready: Those of them that have exactly it ACTIVE.
        failed: Those of them that failed at exactly it.
        answering: Live ones that have what is served now ACTIVE.
        away: Engines that had what is served now ACTIVE when that was committed, and are not there.
        gateways: Live ones.
        unread: Those of them that have failed at its text, for this revision or a later one.
        textless: Those of them that have not its text.
    """

    engines: tuple[ProcessId, ...]
    ready: tuple[ProcessId, ...]
    failed: tuple[Failed, ...]
    answering: tuple[ProcessId, ...]
    away: tuple[ProcessId, ...]
    gateways: tuple[ProcessId, ...]
    unread: tuple[Unread, ...]
    textless: tuple[ProcessId, ...]

    @property
    def waiting_for(self) -> tuple[ProcessId, ...]:
        """Who is not ready for it: engines, and those that are away, then gateways."""
        return (*self.laggards, *self.away, *self.textless)

    @property
    def laggards(self) -> tuple[ProcessId, ...]:
        """Live engines that are not ready for it."""
        return tuple(each for each in self.engines if each not in self.ready)

    @property
    def coming(self) -> tuple[ProcessId, ...]:
        """Engines that answer now, and are on their way to it: with a commit they would answer nobody till they are ready."""
        failed = {each.id for each in self.failed}
        return tuple(each for each in self.answering if each not in failed and each not in self.ready)

    def shortage(self, min_ready: int) -> tuple[str, ...]:
        """Engines that must be ready and are yet to be started: they have no names. Empty where there are enough."""
        missing = min_ready - len(self.engines) - len(self.away)
        if missing <= 0:
            return ()
        more = "1 more engine" if missing == 1 else f"{missing} more engines"
        if not self.engines:
            none = "no engine that is there serves this model@cohort"
            return (f"{more} ({none}: start one that does, or change what one is for, --serves)",)
        has = f"it has {len(self.engines)} of {min_ready} engines that must be ready"
        return (f"{more} ({has}: start more, or publish with a smaller --min-ready)",)

    @property
    def is_read(self) -> bool:
        """Whether every gateway, of at least one, has its text."""
        return bool(self.gateways) and not self.textless


def progress(
    model: ModelName,
    cohort: Cohort,
    target: Target,
    *,
    serving: Serving | None,
    engines: Collection[EngineRecord],
    gateways: Collection[GatewayRecord],
) -> PublishProgress:
    """How far everybody is with what `target` names."""
    live = sorted((each for each in engines if is_for(each, model, cohort)), key=lambda each: each.id)
    wanted = (model, cohort, target.revision, target.artifact_id)
    held = [(each.id, one) for each in live for one in each.generations if _names(one) == wanted]
    texts = sorted(gateways, key=lambda each: each.id)
    return PublishProgress(
        engines=tuple(each.id for each in live),
        ready=tuple(name for name, one in held if one.state is GenerationState.ACTIVE),
        failed=tuple(Failed(*each) for each in held if each[1].state is GenerationState.FAILED),
        answering=_answering(serving, live, model, cohort),
        away=_away(serving, live),
        gateways=tuple(each.id for each in texts),
        unread=tuple(
            Unread(each.id, failure)
            for each in texts
            for failure in each.text_failures
            if (failure.model, failure.cohort, failure.artifact_id) == (model, cohort, target.artifact_id)
            and failure.revision >= target.revision
        ),
        textless=_textless(texts, target.artifact_id),
    )


def state_of(target: Target, served: Serving | None) -> PublishState:
    """How the publish stands that a target is of. An unpublish is applied as it is said."""
    if target.failure is not None:
        return PublishState.FAILED
    is_served = served is not None and served.revision >= target.revision
    return PublishState.APPLIED if is_served or target.artifact_id is None else PublishState.PENDING


def is_for(engine: EngineRecord, model: ModelName, cohort: Cohort) -> bool:
    """Whether an engine is for a model@cohort; one that names nothing is for all."""
    return not engine.serves or not {model, f"{model}@{cohort}"}.isdisjoint(engine.serves)


def _names(held: GenerationRecord) -> tuple[ModelName, Cohort, Revision, ArtifactId]:
    return held.model, held.cohort, held.revision, held.artifact_id


def _answering(
    serving: Serving | None, live: Iterable[EngineRecord], model: ModelName, cohort: Cohort
) -> tuple[ProcessId, ...]:
    served = (model, cohort, serving.artifact_id if serving else None, GenerationState.ACTIVE)
    return tuple(
        each.id
        for each in live
        if any((one.model, one.cohort, one.artifact_id, one.state) == served for one in each.generations)
    )


def _away(serving: Serving | None, live: Iterable[EngineRecord]) -> tuple[ProcessId, ...]:
    present = {each.id for each in live}
    return tuple(each for each in (serving.ready if serving else ()) if each not in present)


def _textless(gateways: Iterable[GatewayRecord], artifact_id: ArtifactId | None) -> tuple[ProcessId, ...]:
    return tuple(each.id for each in gateways if artifact_id not in each.artifact_ids)
