"""When a cohort moves on to its target: the decision, without the registry."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from services.common.registry import keys
from services.common.registry.records import EngineRecord, GatewayRecord, GenerationState, Serving, Target


class Move(NamedTuple):
    """What shall stand at a serving/ key, and the trace of the publish that wants it there."""

    key: str
    serving: Serving
    trace_parent: str = ""


def moves_due(
    *,
    targets: Mapping[str, Target],
    serving: Mapping[str, Serving],
    engines: Collection[EngineRecord],
    gateways: Collection[GatewayRecord],
) -> list[Move]:
    """The cohorts whose target is newer than what they serve and ready to be served.

    Ready: at least one engine reports it ACTIVE at the target's revision, and every gateway, of at least one,
    has its tokenizer. Nothing ever moves to an older revision, and nothing is ever withdrawn.
    """
    due: list[Move] = []
    for key, target in targets.items():
        model, cohort = keys.split_cohort_key(key)
        serving_key = keys.serving(model, cohort)
        if target.artifact_id is None or not is_newer(target.revision, serving.get(serving_key)):
            continue  # what is unpublished is withdrawn by whoever unpublishes it
        if _is_active(key, target, engines) and _is_tokenized(target, gateways):
            record = Serving(revision=target.revision, artifact_id=target.artifact_id)
            due.append(Move(serving_key, record, target.trace_parent))
    return due


def is_newer(revision: int, standing: Serving | None) -> bool:
    return standing is None or revision > standing.revision


def _is_active(key: str, target: Target, engines: Collection[EngineRecord]) -> bool:
    wanted = (*keys.split_cohort_key(key), target.revision, target.artifact_id, GenerationState.ACTIVE)
    return any(
        (held.model, held.cohort, held.revision, held.artifact_id, held.state) == wanted
        for engine in engines
        for held in engine.generations
    )


def _is_tokenized(target: Target, gateways: Collection[GatewayRecord]) -> bool:
    return bool(gateways) and all(target.artifact_id in gateway.artifact_ids for gateway in gateways)
