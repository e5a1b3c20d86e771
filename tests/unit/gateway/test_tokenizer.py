"""Tokenizing: the artifact's own way, and never in the way of others."""

from __future__ import annotations

import asyncio
import json

import pytest
from tokenizers import Tokenizer, processors

from services.common.errors import CorruptData
from services.gateway.tokenizer import LONG_TEXT, TextTokenizer


@pytest.fixture
def with_bos(byte_level_json: bytes) -> bytes:
    """A tokenizer whose post-processor puts a token before every text, and that truncates and pads."""
    tokenizer = Tokenizer.from_str(byte_level_json.decode())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=32)
    content: str = tokenizer.to_str()
    return content.encode()


async def test_special_tokens_are_added_only_where_asked_for(with_bos: bytes) -> None:
    """A text gets what the post-processor adds, a laid out conversation does not."""
    tokenizer = TextTokenizer(with_bos)
    plain = await tokenizer.encode("a fox", add_special_tokens=False)
    assert [0, *plain] == await tokenizer.encode("a fox", add_special_tokens=True)


async def test_nothing_is_cut_off_or_filled_up(with_bos: bytes, byte_level_json: bytes) -> None:
    """Truncation and padding in tokenizer.json, left from training, are not applied to prompts."""
    text = "once upon a time there was a fox"
    plain = await TextTokenizer(byte_level_json).encode(text, add_special_tokens=False)
    assert plain == await TextTokenizer(with_bos).encode(text, add_special_tokens=False)


async def test_a_long_text_leaves_the_event_loop(byte_level_json: bytes) -> None:
    """While a long prompt is tokenized in a thread, others go on."""
    tokenizer = TextTokenizer(byte_level_json)
    text = "a fox " * LONG_TEXT
    turns = 0
    async with asyncio.TaskGroup() as group:
        encoding = group.create_task(tokenizer.encode(text, add_special_tokens=False))
        while not encoding.done():
            turns += 1
            await asyncio.sleep(0)
    assert turns > 3
    assert text == tokenizer.decode(encoding.result())


async def test_a_short_text_is_encoded_on_the_spot(byte_level_json: bytes) -> None:
    """A thread costs more than a short text does."""
    tokenizer = TextTokenizer(byte_level_json)
    encoding = tokenizer.encode("a fox", add_special_tokens=False)
    with pytest.raises(StopIteration):
        encoding.send(None)


@pytest.mark.parametrize("content", [b"", b"\xff", b"{}", json.dumps({"model": {"type": "Magic"}}).encode()])
def test_what_is_no_tokenizer_is_corrupt_data(content: bytes) -> None:
    """A broken file is told from a fault of ours."""
    with pytest.raises(CorruptData, match=r"tokenizer\.json"):
        TextTokenizer(content)
