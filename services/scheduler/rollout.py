"""When a publish is taken into service, and when it has failed: the decision, without the registry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from services.common.ids import ModelName, ProcessId
from services.common.registry import keys
from services.common.registry.publish_progress import (
    MIN_READY,
    Failed,
    PublishProgress,
    Unread,
    progress,
    state_of,
)
from services.common.registry.publish_records import Failure, PublishState, Stage
from services.common.registry.records import EngineRecord, GatewayRecord, Serving, Target
from services.scheduler.patience import Patience, Waiting


class Commit(NamedTuple):
    """The target at this key is to be served.

    Attributes:
        ready: Engines that have it ACTIVE.
        waiting_for: Engines that are to have it and have not.
    """

    key: str
    target: Target
    ready: tuple[ProcessId, ...]
    waiting_for: tuple[ProcessId, ...]


class Fail(NamedTuple):
    """The target at this key will not be served."""

    key: str
    target: Target
    failure: Failure


Step = Commit | Fail


def steps_due(
    *,
    targets: Mapping[str, Target],
    serving: Mapping[str, Serving],
    engines: Collection[EngineRecord],
    gateways: Collection[GatewayRecord],
    patience: Patience,
    now_s: float,
) -> list[Step]:
    """What is to become of the targets that are newer than what their cohort serves, and have not ended.

    One is served once as many engines as it asks for have it ACTIVE at its revision and every gateway, of at least
    one, has its text. One that does not say how many waits for every engine that answers now, until that has failed or
    the time of `patience` is over, and takes one that is ready: so a commit makes no engine idle that could answer. It
    fails at once when a gateway cannot use its text, or so many engines have failed that not
    enough are left, and otherwise when the first engine has been ready for as long as `patience` allows. Nothing
    ever moves to an older revision, and nothing is ever withdrawn.
    """
    open_keys = [
        key
        for key, target in targets.items()
        if state_of(target, _served(key, serving)) is PublishState.PENDING
    ]
    patience.keep(Waiting(key, targets[key].revision) for key in open_keys)
    steps: list[Step] = []
    for key in open_keys:
        target, (model, cohort) = targets[key], keys.split_cohort_key(key)
        served = _served(key, serving)
        seen = progress(model, cohort, target, serving=served, engines=engines, gateways=gateways)
        is_over = bool(seen.ready) and patience.is_over(key, target, now_s)
        if step := _step(key, target, seen, is_over=is_over):
            steps.append(step)
    return steps


def _served(key: str, serving: Mapping[str, Serving]) -> Serving | None:
    return serving.get(keys.serving(*keys.split_cohort_key(key)))


def _step(key: str, target: Target, seen: PublishProgress, *, is_over: bool) -> Step | None:
    min_ready = target.strategy.min_ready or MIN_READY
    is_everybody = target.strategy.min_ready is not None or is_over or not seen.coming
    if len(seen.ready) >= min_ready and seen.is_read and is_everybody:
        return Commit(key, target, seen.ready, seen.laggards)
    model, _ = keys.split_cohort_key(key)
    if seen.unread:
        return Fail(key, target, _unread(model, seen.unread[0]))
    if seen.failed and len(seen.engines) - len(seen.failed) < min_ready:
        return Fail(key, target, _failed(model, seen.failed[0], min_ready))
    if is_over:
        return Fail(key, target, _late(seen, min_ready))
    return None


def _unread(model: ModelName, unread: Unread) -> Failure:
    message = f"gateway {unread.id} cannot serve {model}: {unread.failure.error}"
    return Failure(stage=Stage.TEXT, reason="TEXT_MODEL_FAILED", message=message)


def _failed(model: ModelName, failed: Failed, min_ready: int) -> Failure:
    who = "no engine" if min_ready == 1 else f"of {min_ready} engines that must, too few"
    message = f"{who} can serve {model}: {failed.held.error}"
    told = failed.held.failure  # engines of an older version tell none
    stage, reason = (told.stage, told.reason) if told else (Stage.UNSPECIFIED, "ENGINE_FAILED")
    return Failure(stage=stage, reason=reason, message=message)


def _late(seen: PublishProgress, min_ready: int) -> Failure:
    named = ", ".join((*seen.waiting_for, *seen.shortage(min_ready)))
    message = f"its time is over with {len(seen.ready)} of {min_ready} engines ready; waited for {named}"
    return Failure(stage=Stage.COMMIT, reason="WAITED_FOR", message=message)
