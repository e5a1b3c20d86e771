"""A gateway tries an artifact's representative requests before anybody's request goes that way."""

from __future__ import annotations

import json

import pytest

from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.common.text.representative_requests import FILE
from services.gateway.rehearsal import rehearse
from services.gateway.text_model import TextModelReader

ARTIFACT = ArtifactId("a" * 64)


async def rehearsed(files: dict[str, bytes], *requests: object) -> None:
    text = TextModelReader(1 << 20).read(ARTIFACT, files)
    await rehearse(text, files | {FILE: b"\n".join(json.dumps(each).encode() for each in requests)})


async def test_texts_and_conversations_are_rehearsed(stories_files: dict[str, bytes]) -> None:
    """Good ones pass, and so does an artifact that has none."""
    await rehearsed(stories_files, {"prompt": "Once"}, {"messages": [{"role": "user", "content": "hi"}]})
    await rehearse(TextModelReader(1 << 20).read(ARTIFACT, stories_files), stories_files)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, "request 2 is refused: .*no chat template"),
        ({"prompt": ""}, "request 2 is refused: the prompt is empty"),
        ({"messages": [{"role": "!", "content": "hi"}]}, "request 2 is refused: .*role"),
    ],
)
async def test_one_that_is_refused_is_named(
    stories_files: dict[str, bytes], request_: object, expected: str
) -> None:
    """By its number and this gateway's own words: the artifact's text cannot be used.

    Fault injection: turns red when rehearse lets InvalidRequest pass.
    """
    del stories_files["tokenizer_config.json"]
    with pytest.raises(CorruptData, match=expected):
        await rehearsed(stories_files, {"prompt": "Once"}, request_)
