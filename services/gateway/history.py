"""What was published of a model, and how each publish ended."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from services.common.errors import InvalidRequest, NotFound
from services.common.ids import Cohort, ModelName, Revision
from services.common.pulse import merged
from services.common.registry import keys
from services.common.registry.publish_records import CommitRecord, IntentRecord, PublishState
from services.common.registry.revisions import by_revision
from services.common.registry.store import Store
from services.common.registry.view import View
from services.gateway.operator_words import checked_model_name
from services.gateway.publication_audit import MAX_RECORDS_OF_MODEL
from services.gateway.status import StatusViews

USUAL_ENTRIES: Final = 50


class Published(NamedTuple):
    """One publish of a model, and its commit, if it was served."""

    revision: Revision
    record: IntentRecord
    commit: CommitRecord | None


class Outcome(NamedTuple):
    """How a publish stands.

    Attributes:
        waiting_for: Who is not ready for it, and how many are missing, while it is PENDING.
    """

    revision: Revision
    record: IntentRecord
    waiting_for: tuple[str, ...] = ()


class History:
    """Reads intents/, and commits/.

    Args:
        store: The registry.
        views: Tell who is not ready.
    """

    def __init__(self, store: Store, views: StatusViews) -> None:
        self._store = store
        self._views = views

    async def read(self, model: str, cohort: Cohort | None, max_entries: int) -> list[Published]:
        """The model's last publishes, newest first; of one cohort, or of both.

        Raises:
            InvalidRequest: The name is none, or too many entries are asked for.
            NotFound: Nothing was ever published under that name.
        """
        name = checked_model_name(model)
        if max_entries > MAX_RECORDS_OF_MODEL:
            raise InvalidRequest(f"max_entries is {max_entries}; at most {MAX_RECORDS_OF_MODEL} are kept")
        entries = (await self._store.list(keys.intents(name))).entries
        if not entries:
            raise _unknown(f"nothing was ever published as {name}")
        intents = by_revision(entries, IntentRecord)
        commits = by_revision((await self._store.list(keys.commits(name))).entries, CommitRecord)
        newest_first = (Published(each, intents[each], commits.get(each)) for each in reversed(intents))
        chosen = [each for each in newest_first if cohort in (None, each.record.cohort)]
        return chosen[: max_entries or USUAL_ENTRIES]

    async def watch(self, model: str, revision: Revision) -> AsyncGenerator[Outcome, None]:
        """How one publish stands, at once and after every change; ends with its end.

        Raises:
            InvalidRequest: The name is none.
            NotFound: There is no such publish (any more).
        """
        name = checked_model_name(model)
        key = keys.intent(name, revision)
        async with View(self._store, key, IntentRecord, keeps=True) as intents:
            await intents.synced()
            if key not in intents.records:
                raise _unknown(
                    f"{name} has no revision {revision}, or it is older than the last that are kept"
                )
            last: Outcome | None = None
            async with contextlib.aclosing(merged(intents.changes(), self._views.changes())) as changes:
                async for _ in changes:
                    outcome = self._outcome(name, revision, intents.records[key])
                    if outcome != last:
                        yield outcome
                    if outcome.record.state is not PublishState.PENDING:
                        return
                    last = outcome

    def _outcome(self, model: ModelName, revision: Revision, record: IntentRecord) -> Outcome:
        status, key = self._views.read(), keys.target(model, record.cohort)
        target = status.targets.get(key)
        if record.state is not PublishState.PENDING or target is None or target.revision != revision:
            return Outcome(revision, record)
        return Outcome(revision, record, status.waiting_for(key))


def _unknown(message: str) -> NotFound:
    return NotFound(f"{message}; see what is: halogen status", reason="PUBLISH_UNKNOWN")
