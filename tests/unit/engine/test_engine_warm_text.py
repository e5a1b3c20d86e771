"""Representative requests are encoded apart from the process that serves, and reach the model's warm-up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from services.common.errors import Unavailable
from services.common.registry.publish_records import Stage
from services.common.registry.records import GenerationState as State
from services.common.text.representative_requests import FILE
from services.engine import warm_text
from services.engine.warm_text import encode_apart
from tests.unit.engine.generation_world import OLD, world

_TEXT = ("config.json", "tokenizer.json", "tokenizer_config.json")
_STORIES = Path(__file__).parents[2] / "models" / "stories-v1"


def text_files(*requests: object) -> dict[str, bytes]:
    """Of the story model, with these requests."""
    lines = b"\n".join(json.dumps(each).encode() for each in requests)
    return {name: (_STORIES / name).read_bytes() for name in _TEXT} | {FILE: lines}


async def test_a_process_that_breaks_down_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been killed for want of memory: no fault of the artifact's."""
    monkeypatch.setattr(warm_text, "_MODULE", "this")  # reads nothing, and says something else
    with pytest.raises(Unavailable, match="were not encoded"):
        await encode_apart(text_files({"prompt": "Once"}))


async def test_a_caller_that_leaves_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that is called off leaves nothing behind.

    Fault injection: turns red when _encoder does not kill its process.
    """
    made: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def asleep(*_: object, **pipes: int) -> asyncio.subprocess.Process:
        made.append(await start("sleep", "60", **pipes))  # type: ignore[arg-type]
        return made[0]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", asleep)
    task = asyncio.create_task(encode_apart(text_files({"prompt": "Once"})))
    async with asyncio.timeout(30):
        while not made:  # noqa: ASYNC110  # until the process is there
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert -9 == made[0].returncode


async def test_an_artifact_that_answers_otherwise_fails_at_its_warm_up() -> None:
    """PROBE_MISMATCH at WARM_UP; what a stand-in counts up to is expected of the one beside it, which serves.

    Fault injection: turns red when GenerationLoad does not hand the prompts to the warm-up.
    """
    async with world() as it:
        it.loader.texts[OLD] = text_files({"prompt": "\n", "expected_token_ids": [511]})
        await it.target(OLD)
        await it.until(lambda states: states == {OLD: State.FAILED})
        [failure] = [record.failure for record in it.records]
        assert failure is not None
        assert (Stage.WARM_UP, "PROBE_MISMATCH") == (failure.stage, failure.reason)
        assert OLD in failure.message
