"""Representative requests as token ids, in this process and in one of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from services.common.errors import CorruptData
from services.common.own_python import module_command
from services.common.text.encoding_process import pack, read_answer, unpack
from services.common.text.representative_prompts import MOST_WARMED, encode_requests
from services.common.text.representative_requests import FILE

_STORIES = Path(__file__).parents[2] / "models" / "stories-v1"
_TEMPLATE = b"{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\\n' }}{% endfor %}assistant:"
_PROCESS = module_command("services.common.text.encoding_process")


def files(*requests: object) -> dict[str, bytes]:
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    lines = b"\n".join(json.dumps(each).encode() for each in requests)
    read = {name: (_STORIES / name).read_bytes() for name in names}
    return read | {"chat_template.jinja": _TEMPLATE, FILE: lines}


def chat(content: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


def test_texts_and_conversations_are_encoded_as_gateways_do() -> None:
    """A conversation by the artifact's own template, and what is expected stays with its request."""
    text, conversation = encode_requests(
        files({"prompt": "user: hi\nassistant:", "expected_token_ids": [3, 4]}, chat("hi"))
    )
    assert (1, 2) == (text.number, conversation.number)
    assert text.token_ids == conversation.token_ids
    assert ((3, 4), ()) == (text.expected_token_ids, conversation.expected_token_ids)


def test_the_first_that_fit_are_taken() -> None:
    """A prompt that leaves no room for an answer in the model's context is none that anybody could ask."""
    long = {"prompt": "a fox " * 400}
    prompts = encode_requests(files(long, *({"prompt": "a"},) * 20))
    assert list(range(2, MOST_WARMED + 1)) == [each.number for each in prompts]


def test_an_artifact_without_the_file_has_none() -> None:
    """Nothing else is read then."""
    assert () == encode_requests({"tokenizer.json": b"whatever"})


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"prompt": ""}, "request 1 has no tokens"),
        (
            {"prompt": "a", "expected_token_ids": [512]},
            "request 1 has token id 512; ids of the model are below 512",
        ),
        (
            {"messages": [{"role": "nobody", "content": 3}]},
            "request 1 has a message without a text role and content",
        ),
    ],
)
def test_one_that_cannot_be_computed_is_named(request_: object, expected: str) -> None:
    """By its number, with what is wrong."""
    with pytest.raises(CorruptData, match=expected):
        encode_requests(files(request_))


def test_a_template_that_refuses_is_told() -> None:
    """With its own words."""
    refusing = {"chat_template.jinja": b"{{ raise_exception('no such talk') }}"}
    with pytest.raises(
        CorruptData, match="request 1 has messages that the chat template does not take: no such talk"
    ):
        encode_requests(files(chat("hi")) | refusing)


def test_files_go_through_a_pipe() -> None:
    """Whatever they hold."""
    given = {"a.json": b"{}\n\x00", "empty": b"", "b": b"\n\n"}
    assert given == unpack(pack(given))


def test_a_process_of_its_own_gives_the_same() -> None:
    """Its answer is the prompts, or why there are none."""
    good, bad = files({"prompt": "Once"}, chat("hi")), files({"prompt": ""})
    said = subprocess.run(_PROCESS, input=pack(good), capture_output=True, check=True).stdout
    assert encode_requests(good) == read_answer(said)
    said = subprocess.run(_PROCESS, input=pack(bad), capture_output=True, check=True).stdout
    with pytest.raises(CorruptData, match="request 1 has no tokens"):
        read_answer(said)
