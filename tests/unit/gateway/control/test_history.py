"""What was published of a model, and how each publish ended, as it can be asked for and followed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from services.common.errors import InvalidRequest, NotFound
from services.common.ids import Cohort, Revision
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.publish_records import IntentRecord, PublishState
from services.common.registry.records import EngineRecord, LoaderRecord, Serving, Target
from services.common.registry.view import View
from services.gateway.control import Control
from services.gateway.history import History, Outcome
from services.gateway.status import StatusViews
from tests.unit.gateway.control.builders import MODEL, CutStore, engine, manifest, order, registered

A = manifest("a").id


@pytest.fixture
async def history(store: CutStore) -> AsyncIterator[History]:
    async with (
        View(store, keys.TARGETS, Target) as targets,
        View(store, keys.SERVING, Serving) as serving,
        View(store, keys.LOADERS, LoaderRecord) as loaders,
        View(store, keys.ENGINES, EngineRecord) as engines,
        StatusViews(
            store, RegistryContact(), targets=targets, serving=serving, loaders=loaders, engines=engines
        ) as views,
    ):
        yield History(store, views)


@pytest.fixture
async def published(control: Control) -> None:
    """Stable, canary, stable."""
    await registered(control, manifest("a"))
    for cohort in (Cohort.STABLE, Cohort.CANARY, Cohort.STABLE):
        await control.publications.publish(order(A, cohort=cohort))


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(
    ("cohort", "most", "expected"),
    [(None, 0, [3, 2, 1]), (None, 2, [3, 2]), (Cohort.STABLE, 0, [3, 1]), (Cohort.CANARY, 1, [2])],
)
async def test_the_newest_come_first(
    history: History, cohort: Cohort | None, most: int, expected: list[int]
) -> None:
    """Of both cohorts or one, as many as are asked for. Turns red when: `read` counts before it chooses a cohort."""
    assert expected == [each.revision for each in await history.read(MODEL, cohort, most)]


async def test_a_model_that_was_never_published_has_no_history(history: History) -> None:
    """That is said, and so is what can be no name and no number."""
    with pytest.raises(NotFound, match="nothing was ever published as m"):
        await history.read(MODEL, None, 0)
    with pytest.raises(InvalidRequest, match="cannot name a model"):
        await history.read("M/1", None, 0)
    with pytest.raises(InvalidRequest, match="at most 1000"):
        await history.read(MODEL, None, 1_001)


async def end(store: CutStore, revision: int) -> None:
    """What the leader writes."""
    key = keys.intent(MODEL, Revision(revision))
    entry = await store.get(key)
    assert entry is not None
    ended = IntentRecord.decode(entry.value).ended(PublishState.APPLIED, "now")
    await store.put(key, ended.encode())


@pytest.mark.usefixtures("published")
async def test_a_publish_is_followed_to_its_end(history: History, store: CutStore) -> None:
    """Who is waited for as it changes, then how it ended, and nothing more."""
    told: list[Outcome] = []
    async with contextlib.aclosing(history.watch(MODEL, Revision(3))) as outcomes:
        async for outcome in outcomes:
            told.append(outcome)
            if outcome.waiting_for == ("engine-a",):
                await end(store, 3)
            elif outcome.record.state is PublishState.PENDING:
                await store.put(keys.engine(engine().id), engine().encode())
    assert ("engine-a",) in [outcome.waiting_for for outcome in told]
    assert PublishState.APPLIED is told[-1].record.state


@pytest.mark.usefixtures("published")
async def test_what_has_ended_is_told_at_once(history: History) -> None:
    """By whom it was superseded."""
    (told,) = [outcome async for outcome in history.watch(MODEL, Revision(1))]
    assert (PublishState.SUPERSEDED, 3) == (told.record.state, told.record.superseded_by)


@pytest.mark.usefixtures("published")
async def test_a_publish_that_never_was_cannot_be_followed(history: History) -> None:
    """Rather than be waited for without end."""
    with pytest.raises(NotFound, match="m has no revision 9"):
        await anext(history.watch(MODEL, Revision(9)))
