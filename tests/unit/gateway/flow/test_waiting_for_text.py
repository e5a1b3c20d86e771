"""Requests for what is served already, at a gateway that still loads its tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from services.common.backoff import Backoff
from services.common.completion import FinishReason
from services.common.errors import CorruptData, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, RequestId, Revision
from services.common.registry import keys
from services.common.registry.records import Serving
from services.gateway import rerouting

if TYPE_CHECKING:
    from tests.unit.gateway.flow.conftest import Flow

NEW, OTHER = ModelName("new"), ArtifactId("b" * 64)


class SlowFiles:
    """The loader's answer about `OTHER`, held back until a test lets it go, or fails it."""

    def __init__(self, flow: Flow) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.failure: Exception | None = None
        self._read = flow.files.read
        flow.files.files[OTHER] = dict(flow.files.files[ArtifactId("a" * 64)])

    async def read(self, artifact_id: ArtifactId) -> Mapping[str, bytes]:
        if artifact_id == OTHER:
            self.asked.set()
            await self.go_on.wait()
            if self.failure:
                raise self.failure
        return await self._read(artifact_id)


@pytest.fixture
async def slow(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> SlowFiles:
    """A second model is served by now, and its tokenizer is being loaded."""
    files = SlowFiles(flow)
    monkeypatch.setattr(flow.files, "read", files.read)
    serving = Serving(revision=Revision(1), artifact_id=OTHER)
    await flow.store.put(keys.serving(NEW, Cohort.STABLE), serving.encode())
    await files.asked.wait()
    return files


async def test_a_request_waits_for_the_tokenizer_and_delays_nobody(flow: Flow, slow: SlowFiles) -> None:
    """It is answered once that is there; who asks for another model is answered meanwhile.

    Fault injection: turns red when `find` gives up at the first refusal.
    """
    answer = await flow.says("fox", FinishReason.LENGTH)
    flow.engines.scripts = [[answer], [answer._replace(artifact_id=OTHER)]]
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(flow.collect(model=NEW, request_id=RequestId("waits")))
        [chunk] = await flow.collect()
        assert ("fox", False) == (chunk.text, waiting.done())
        slow.go_on.set()
    [chunk] = waiting.result()
    assert chunk.provenance is not None
    assert ("fox", OTHER) == (chunk.text, chunk.provenance.artifact_id)


@pytest.mark.parametrize(("patience_s", "timeout_s"), [(0.01, None), (0.01, 1e6), (1e6, 0.05)])
async def test_a_tokenizer_that_does_not_come_is_waited_for_only_so_long(
    flow: Flow, slow: SlowFiles, monkeypatch: pytest.MonkeyPatch, patience_s: float, timeout_s: float | None
) -> None:
    """As long as the request's deadline and the gateway's patience allow; then its caller is to come back.

    Fault injection: turns red when `find` leaves one of the two bounds out.
    """
    monkeypatch.setattr(rerouting, "TEXT_PATIENCE_S", patience_s)
    with pytest.raises(Unavailable) as refused:
        async with asyncio.timeout(30):
            await flow.collect(timeout_s, model=NEW)
    assert ("TOKENIZER_LOADING", 0.5) == (refused.value.reason, refused.value.retry_after_s)
    assert not slow.go_on.is_set()


async def test_a_tokenizer_that_cannot_be_read_is_waited_for_no_longer(
    flow: Flow, slow: SlowFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited is told so at once. Fault injection: turns red when `find` takes any refusal for one that may pass."""
    monkeypatch.setattr(Backoff, "pause", lambda _: asyncio.Event().wait())
    monkeypatch.setattr(rerouting, "TEXT_PATIENCE_S", 1e6)
    slow.failure = CorruptData("torn")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(flow))
        slow.go_on.set()
    assert "TEXT_MODEL_FAILED" == waiting.result().reason


async def refusal(flow: Flow) -> PreconditionFailed:
    """What a request for the second model ends with."""
    with pytest.raises(PreconditionFailed) as refused:
        await flow.collect(model=NEW)
    return refused.value
