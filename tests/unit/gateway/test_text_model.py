"""The text side of an artifact."""

from __future__ import annotations

import json

import pytest

from services.common.errors import CorruptData, InvalidRequest
from services.common.ids import ArtifactId
from services.gateway.chat import Message
from services.gateway.request import ChatPrompt, TextPrompt, TokenPrompt
from services.gateway.text_model import TextModel, TextModelReader
from services.gateway.tokenizer import LONG_TEXT

ARTIFACT = ArtifactId("a" * 64)


def read(files: dict[str, bytes], max_prompt_bytes: int = 1 << 20) -> TextModel:
    return TextModelReader(max_prompt_bytes).read(ARTIFACT, files)


async def test_prompts_of_every_form_become_token_ids(stories_files: dict[str, bytes]) -> None:
    """Text and conversations are tokenized, token ids taken as they are."""
    model = read(stories_files)
    text = await model.encode(TextPrompt("user: hi\nassistant:"))
    assert "user: hi\nassistant:" == model.tokenizer.decode(text)
    assert text == await model.encode(ChatPrompt((Message("user", "hi"),)))
    assert text == await model.encode(TokenPrompt(tuple(text)))


async def test_long_conversations_are_laid_out_too(stories_files: dict[str, bytes]) -> None:
    """The way through a thread gives the same."""
    model = read(stories_files)
    content = "a fox " * LONG_TEXT
    ids = await model.encode(ChatPrompt((Message("user", content),)))
    assert f"user: {content}\nassistant:" == model.tokenizer.decode(ids)


async def test_token_ids_must_be_of_the_vocabulary(stories_files: dict[str, bytes]) -> None:
    """An id that the model does not have is named before an engine meets it."""
    with pytest.raises(InvalidRequest, match="token id 512; ids of this model are below 512"):
        await read(stories_files).encode(TokenPrompt((1, 512)))


async def test_a_model_without_a_template_does_not_chat(stories_files: dict[str, bytes]) -> None:
    """The message says what works instead."""
    del stories_files["tokenizer_config.json"]
    with pytest.raises(InvalidRequest, match=r"no chat template; use Generate \(.*halogen generate\)"):
        await read(stories_files).encode(ChatPrompt((Message("user", "hi"),)))


def test_facts_of_the_model_are_read(stories_files: dict[str, bytes]) -> None:
    """Context, vocabulary and ending tokens are the artifact's."""
    model = read(stories_files)
    assert (192, 512, (0,)) == (model.context_tokens, model.vocab_size, model.defaults.eos_token_ids)


def test_the_same_tokenizer_is_parsed_once(stories_files: dict[str, bytes]) -> None:
    """A swap between artifacts with the same tokenizer does not parse it again."""
    reader = TextModelReader(1 << 20)
    first = reader.read(ARTIFACT, stories_files)
    second = reader.read(ArtifactId("b" * 64), stories_files)
    assert first.tokenizer is second.tokenizer


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", json.dumps({"vocab_size": 512}).encode()),
        ("generation_config.json", json.dumps({"do_sample": True, "top_p": 7}).encode()),
        ("tokenizer_config.json", b'"text"'),
        ("chat_template.jinja", b"{% if %}"),
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b"{{ (7**300000000) % 3 }}"),
        ("tokenizer.json", b"{}"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("config.json", b'{"vocab_size": 512, "max_position_embeddings": Infinity}'),
    ],
)
def test_files_that_are_not_what_they_say_are_corrupt(
    stories_files: dict[str, bytes], path: str, content: bytes
) -> None:
    """Whatever is wrong in them, loading says so and nothing else happens."""
    with pytest.raises(CorruptData):
        read(stories_files | {path: content})
