"""What holds after every transaction, whoever made it.

- P1: what a cohort serves is never of an older revision than before.
- P2: at most one publish of a cohort is pending, and it is the one that its target is of.
- P3: how a publish ended never changes.
- P4: what serves is what was committed under its revision, which is APPLIED, or nothing, by an unpublish.
- P5: what has failed, or was superseded, was never committed.
- P6: a model's revisions rise by one with every publish.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from services.common.registry import keys
from services.common.registry.publish_records import CommitRecord, IntentRecord, PublishState
from services.common.registry.record import Record
from services.common.registry.records import LastRevision, Serving, Target
from services.common.registry.store import Entry
from tests.simulation.publishing import MODEL

R = TypeVar("R", bound=Record)
State = Mapping[str, Entry]


def check(before: State, after: State) -> None:
    """Raises AssertionError where one of them does not hold."""
    intents, ended = decoded(after, keys.INTENTS, IntentRecord), decoded(before, keys.INTENTS, IntentRecord)
    _serving_rises(before, after)
    _one_is_pending(after, intents)
    for key, intent in ended.items():
        assert intent.state is PublishState.PENDING or intents[key] == intent, f"P3: {key}"
    _what_serves_was_committed(after, intents)
    for key in decoded(after, keys.COMMITS, CommitRecord):
        intent = intents[keys.intent(*keys.split_revision_key(key))]
        assert intent.state is PublishState.APPLIED, f"P5: {key} is {intent.state}"
    assert _last(after) - _last(before) == len(intents) - len(ended), "P6"


def decoded(state: State, prefix: str, kind: type[R]) -> dict[str, R]:
    return {k: kind.decode(entry.value) for k, entry in state.items() if k.startswith(prefix)}


def _serving_rises(before: State, after: State) -> None:
    later = decoded(after, keys.SERVING, Serving)
    for key, serving in decoded(before, keys.SERVING, Serving).items():
        assert later[key].revision >= serving.revision, f"P1: {key}"


def _one_is_pending(state: State, intents: Mapping[str, IntentRecord]) -> None:
    named = {keys.intent(MODEL, target.revision) for target in decoded(state, keys.TARGETS, Target).values()}
    pending = {key for key, intent in intents.items() if intent.state is PublishState.PENDING}
    assert pending <= named, f"P2: {pending - named}"


def _what_serves_was_committed(state: State, intents: Mapping[str, IntentRecord]) -> None:
    commits = decoded(state, keys.COMMITS, CommitRecord)
    for serving in decoded(state, keys.SERVING, Serving).values():
        intent = intents[keys.intent(MODEL, serving.revision)]
        assert (PublishState.APPLIED, serving.artifact_id) == (intent.state, intent.artifact_id), "P4"
        if serving.artifact_id:
            assert serving.artifact_id == commits[keys.commit(MODEL, serving.revision)].artifact_id, "P4"


def _last(state: State) -> int:
    entry = state.get(keys.revision(MODEL))
    return LastRevision.decode(entry.value).revision if entry else 0
