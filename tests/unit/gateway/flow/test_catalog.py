"""The catalog: in step with what is published, and patient with loaders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from services.common.backoff import Backoff
from services.common.errors import CorruptData, HalogenError, NotFound, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import Serving, Target
from services.common.registry.view import View
from services.common.text.representative_requests import FILE
from services.gateway.catalog import Catalog, Failed
from services.gateway.routes import Route
from services.gateway.text_model import TextModelReader

if TYPE_CHECKING:
    from tests.unit.gateway.flow.conftest import Flow

FIRST, SECOND = ArtifactId("a" * 64), ArtifactId("b" * 64)
MODEL = ModelName("stories")


async def until(catalog: Catalog, condition: Callable[[], bool]) -> None:
    async with contextlib.aclosing(catalog.changes()) as changes:
        async for _ in changes:
            if condition():
                return


async def aim(flow: Flow, artifact_id: ArtifactId, revision: int) -> None:
    target = Target(revision=Revision(revision), artifact_id=artifact_id, who="w", why="y")
    await flow.store.put(keys.target(MODEL, Cohort.STABLE), target.encode())


@pytest.fixture
def other(flow: Flow) -> ArtifactId:
    """A second artifact in the loader's store."""
    flow.files.files[SECOND] = flow.files.files[FIRST]
    return SECOND


async def test_a_published_artifact_is_loaded_before_it_is_served(flow: Flow, other: ArtifactId) -> None:
    """What a target names is loaded beside what is served, so that traffic can move."""
    await aim(flow, other, 2)
    await until(flow.catalog, lambda: flow.catalog.artifact_ids == (FIRST, SECOND))
    assert FIRST == flow.catalog.route(MODEL, None).route.artifact_id


async def test_a_gateway_that_has_just_started_asks_for_patience(flow: Flow) -> None:
    """Before the registry has been heard, nobody can say that a model is not there.

    Turns red when: Catalog.route does not look whether its views are synced.
    """
    targets, serving = View(flow.store, keys.TARGETS, Target), View(flow.store, keys.SERVING, Serving)
    catalog = Catalog(targets, serving, flow.files, TextModelReader(1_000))
    with pytest.raises(Unavailable) as refused:
        catalog.route(MODEL, None)
    assert ("STARTING", 0.5) == (refused.value.reason, refused.value.retry_after_s)


async def test_an_artifact_whose_own_requests_are_refused_is_not_routed_to(
    flow: Flow, other: ArtifactId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported as one whose text cannot be used, and the publish fails.

    Fault injection: turns red when Catalog._read does not rehearse them.
    """
    gate = asyncio.Event()
    monkeypatch.setattr(Backoff, "pause", lambda _: gate.wait())
    flow.files.files[SECOND] = flow.files.files[FIRST] | {FILE: b'{"prompt": ""}'}
    await aim(flow, other, 2)
    await until(flow.catalog, lambda: bool(flow.catalog.failures))
    assert [
        f"{FILE}: request 1 is refused: the prompt is empty; give at least one token's worth of text"
    ] == [failed.error for failed in flow.catalog.failures]
    assert FIRST == flow.catalog.route(MODEL, None).route.artifact_id


async def test_text_files_that_break_their_reader_fail_their_publish_alone(
    flow: Flow, other: ArtifactId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was raised: what is served is served, and this gateway goes on following.

    Fault injection: turns red when `Catalog._read` lets pass what is no HalogenError.
    """

    async def broken(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    gate = asyncio.Event()
    monkeypatch.setattr(Backoff, "pause", lambda _: gate.wait())
    with monkeypatch.context() as patch:
        patch.setattr("services.gateway.catalog.rehearse", broken)
        await aim(flow, other, 2)
        await until(flow.catalog, lambda: bool(flow.catalog.failures))
    assert FIRST == flow.catalog.route(MODEL, None).route.artifact_id
    await aim(flow, FIRST, 3)
    await until(flow.catalog, lambda: not flow.catalog.failures)


async def test_what_nobody_names_any_more_is_forgotten(flow: Flow, other: ArtifactId) -> None:
    """After the move the old one goes; a request that began with it keeps it."""
    before = flow.catalog.route(MODEL, None)
    await flow.serve(other, revision=2)
    await until(flow.catalog, lambda: flow.catalog.artifact_ids == (SECOND,))
    assert [9 < len(await before.text.tokenizer.encode("once upon a time", add_special_tokens=False))] == [
        False
    ]
    assert SECOND == flow.catalog.route(MODEL, None).route.artifact_id


async def test_a_loader_that_is_away_is_asked_again(
    flow: Flow, other: ArtifactId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it answers; meanwhile everything else goes on."""
    monkeypatch.setattr(Backoff, "next_s", lambda _: 0)
    flow.files.failures = [Unavailable("starting"), Unavailable("starting"), CorruptData("half copied")]
    await aim(flow, other, 2)
    await until(flow.catalog, lambda: SECOND in flow.catalog.artifact_ids)
    assert [] == flow.files.failures


async def test_what_cannot_be_loaded_is_given_up_with_its_target(flow: Flow, other: ArtifactId) -> None:
    """A hopeless artifact is dropped when a newer publish names another."""
    await aim(flow, ArtifactId("f" * 64), 2)
    await until(flow.catalog, lambda: ArtifactId("f" * 64) in flow.catalog._loading)
    await aim(flow, other, 3)
    await until(flow.catalog, lambda: SECOND in flow.catalog.artifact_ids)
    assert {} == flow.catalog._loading


async def test_what_is_served_but_not_loaded_yet_comes_soon(
    flow: Flow, other: ArtifactId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that has just started says when to ask again, rather than that there is no model."""
    gate = asyncio.Event()
    read = flow.files.read

    async def slow(artifact_id: ArtifactId) -> dict[str, bytes]:
        await gate.wait()
        return dict(await read(artifact_id))

    monkeypatch.setattr(flow.files, "read", slow)
    record = Serving(revision=Revision(2), artifact_id=other)
    await flow.store.put(keys.serving(MODEL, Cohort.STABLE), record.encode())
    await until(flow.catalog, lambda: SECOND in flow.catalog._loading)
    with pytest.raises(Unavailable, match="tokenizer of stories@stable is being loaded") as caught:
        flow.catalog.route(MODEL, None)
    assert (0.5, []) == (caught.value.retry_after_s, flow.catalog.served())
    gate.set()
    await until(flow.catalog, lambda: len(flow.catalog.served()) == 1)


async def test_what_cannot_be_read_is_reported_and_said(
    flow: Flow, other: ArtifactId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it can be. Fault injection: `route` lets `Unavailable` pass as it is."""
    gate = asyncio.Event()
    monkeypatch.setattr(Backoff, "pause", lambda _: gate.wait())
    fresh = Target(revision=Revision(2), artifact_id=other, who="w", why="y")
    flow.files.failures = [CorruptData("tokenizer.json cannot be read")]
    await flow.store.put(keys.target(ModelName("new"), Cohort.STABLE), fresh.encode())
    await until(flow.catalog, lambda: bool(flow.catalog.failures))
    new = Route(ModelName("new"), Cohort.STABLE, Revision(2), SECOND)
    assert [Failed(new, "tokenizer.json cannot be read")] == flow.catalog.failures
    with pytest.raises(PreconditionFailed, match=r"new@stable \(tokenizer\.json cannot be read\)"):
        flow.catalog.route(ModelName("new"), None)
    gate.set()
    await until(flow.catalog, lambda: SECOND in flow.catalog.artifact_ids)
    assert [] == flow.catalog.failures


@pytest.fixture
def no_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails is not tried again by itself."""
    monkeypatch.setattr(Backoff, "pause", lambda _: asyncio.Event().wait())


@pytest.mark.usefixtures("no_next_try")
async def test_a_newer_publish_is_tried_at_once(flow: Flow, other: ArtifactId) -> None:
    """The store may have been mended for it. Fault injection: turns red when `_reconcile` leaves out `_is_news`."""
    flow.files.failures = [CorruptData("half copied")]
    await aim(flow, other, 2)
    await until(flow.catalog, lambda: bool(flow.catalog.failures))
    await aim(flow, other, 3)
    async with asyncio.timeout(30):
        await until(flow.catalog, lambda: SECOND in flow.catalog.artifact_ids)
    assert [] == flow.catalog.failures


@pytest.mark.usefixtures("no_next_try")
async def test_a_failure_names_the_revision_that_was_tried(flow: Flow, other: ArtifactId) -> None:
    """Whoever waits for a publish can tell its failure from older ones."""
    flow.files.failures = [CorruptData("torn"), CorruptData("half copied")]
    await aim(flow, other, 2)
    await until(flow.catalog, lambda: bool(flow.catalog.failures))
    await aim(flow, other, 3)
    async with asyncio.timeout(30):
        await until(flow.catalog, lambda: "half copied" in {each.error for each in flow.catalog.failures})
    assert [3] == [each.route.revision for each in flow.catalog.failures]


@pytest.mark.parametrize("fault", [Unavailable("starting"), NotFound("not in the store")])
async def test_what_may_pass_is_no_failure(
    flow: Flow, other: ArtifactId, monkeypatch: pytest.MonkeyPatch, fault: HalogenError
) -> None:
    """A loader that is away, files that are on their way: neither says anything of the artifact. Fault injection: `_note_failure` notes every failure."""
    away, gate = asyncio.Event(), asyncio.Event()

    async def pause(_: Backoff) -> None:
        away.set()
        await gate.wait()

    monkeypatch.setattr(Backoff, "pause", pause)
    flow.files.failures = [fault]
    await aim(flow, other, 2)
    await away.wait()
    assert [] == flow.catalog.failures
    gate.set()


async def test_a_failure_goes_with_its_target(flow: Flow, other: ArtifactId) -> None:
    """Nobody hears of an artifact that is no longer named."""
    flow.files.failures = [CorruptData("broken")] * 3
    await aim(flow, other, 2)
    await until(flow.catalog, lambda: bool(flow.catalog.failures))
    await aim(flow, FIRST, 3)
    await until(flow.catalog, lambda: not flow.catalog.failures)


async def test_an_outage_of_the_registry_changes_nothing(flow: Flow) -> None:
    """What is loaded stays, and requests are routed on."""
    with flow.store.outage():
        assert FIRST == flow.catalog.route(MODEL, None).route.artifact_id
