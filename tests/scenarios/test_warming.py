"""An artifact's representative requests: tried by gateways and engines before anybody's request goes that way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.console import CommandError
from services.common.registry.publish_records import Stage
from services.common.text.representative_prompts import encode_requests
from services.common.text.representative_requests import FILE
from services.engine.trial import continuation
from services.loader.conversion import convert
from tests.scenarios.cluster import Cluster
from tests.scenarios.test_swap_faults import failure_of
from tests.scenarios.test_swapping import TICKETS, ask

Start = Callable[..., Any]

_STORIES = Path(__file__).parents[1] / "models"
_NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json")


def artifact(folder: Path, model: str, *requests: object) -> Path:
    """A story model that says what it is typically asked."""
    source = folder / "source"
    shutil.copytree(_STORIES / model, source)
    (source / FILE).write_text("\n".join(map(json.dumps, requests)))
    convert(source, folder / "artifact")
    return folder / "artifact"


def first_tokens(of: Path, text: str, count: int) -> list[int]:
    """How an artifact's greedy answer begins."""
    files = {name: (of / name).read_bytes() for name in _NAMES}
    [prompt] = encode_requests(files | {FILE: json.dumps({"prompt": text}).encode()})
    return [choice.token for choice in continuation(of, prompt.token_ids, count)]


async def test_an_artifact_that_answers_as_expected_is_served_and_another_is_not(
    start: Start, stories: dict[str, Path], tmp_path: Path
) -> None:
    """The same expectation: kept by the model that it was taken from, refused in another, which nobody notices.

    Fault injection: turns red when LoaderClient.text_files gives nothing.
    """
    request = {
        "prompt": "Once upon",
        "expected_token_ids": first_tokens(stories["stories-v1"], "Once upon", 8),
    }
    good = artifact(tmp_path / "good", "stories-v1", request, {"prompt": "The fox"})
    wrong = artifact(tmp_path / "wrong", "stories-v2", request)
    system: Cluster = await start("in_process", engine=TICKETS, scheduler=TICKETS)
    await system.publish("m", good)
    async with system.client() as client:
        before = await ask(client)
        with pytest.raises(CommandError, match="PROBE_MISMATCH"):
            await system.publish("m", wrong)
        assert before == await ask(client)
    async with system.control() as control:
        [cohort] = (await control.status(10)).cohorts
    failure = await failure_of(system, cohort.desired_revision)
    assert (Stage.WARM_UP, "PROBE_MISMATCH") == (failure.stage, failure.reason)
    assert "answers its representative request 1 with tokens" in failure.message
