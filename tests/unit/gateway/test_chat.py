"""Chat templates: laid out as Hugging Face does, and kept from doing harm."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from services.common.errors import CorruptData, InvalidRequest
from services.common.text.chat_template import template_source
from services.common.text.special_tokens import special_tokens
from services.gateway.chat import ChatTemplate, Message

CHATML = """{% for message in messages %}
    {% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\nBe brief.<|im_end|>\n' }}
    {% endif %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LOOPING = """{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}
{% generation %}[{{ m.role }}] {{ m.content | trim }}{% endgeneration %}
{% endfor %}{{ messages | tojson(indent=2) }}"""
TALK = [
    Message("user", " What is <the> capital\nof \u010cesko? "),
    Message("assistant", "Praha"),
    Message("tool", "x"),
]


def template(source: str, max_chars: int = 10_000) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, max_chars)


@pytest.mark.parametrize("source", [CHATML, LOOPING], ids=["chatml", "looping"])
def test_conversations_are_laid_out_as_hugging_face_does(source: str) -> None:
    """Blanks, loop controls, generation marks, JSON and special tokens come out as in transformers."""
    rendered: Any = render_jinja_template(
        conversations=[[message._asdict() for message in TALK]],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert rendered[0] == [template(source).render(TALK)]


def test_the_date_is_there_for_templates_that_tell_it() -> None:
    """`strftime_now` gives today in the server's time zone."""
    year = dt.datetime.now(dt.UTC).astimezone().strftime("%Y")
    assert year == template("{{ strftime_now('%Y') }}").render(TALK)


def test_a_refusal_of_the_template_is_told_in_its_own_words() -> None:
    """`raise_exception` makes the request invalid, with what the template says."""
    refusing = template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        refusing.render(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[7].content }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ missing() }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_makes_the_request_invalid(source: str) -> None:
    """Whatever a template does wrong, or should not do, ends that request and nothing else."""
    with pytest.raises(InvalidRequest) as caught:
        template(source).render(TALK)
    assert "CHAT_TEMPLATE_REFUSED" == caught.value.reason


def test_a_template_cannot_make_much_of_little() -> None:
    """What comes out is bounded while it is made, not after."""
    with pytest.raises(InvalidRequest, match="more than 100 characters"):
        template("{% for i in range(99999) %}{{ i }}{% endfor %}", max_chars=100).render(TALK)


def test_what_is_no_template_is_corrupt_data() -> None:
    """A broken template is found when the model is loaded."""
    with pytest.raises(CorruptData, match="chat template"):
        template("{% for %}")


@pytest.mark.parametrize(
    ("config", "file", "expected"),
    [
        ({}, None, None),
        ({"chat_template": "one"}, None, "one"),
        ({"chat_template": "one"}, "file", "file"),
        (
            {
                "chat_template": [
                    {"name": "tool_use", "template": "t"},
                    {"name": "default", "template": "d"},
                ]
            },
            None,
            "d",
        ),
        ({"chat_template": [{"name": "rag", "template": "r"}]}, None, None),
    ],
)
def test_the_artifact_says_which_template(
    config: dict[str, Any], file: str | None, expected: str | None
) -> None:
    """A file of its own comes first, then the configured one, of several the default."""
    assert expected == template_source(config, file)


def test_special_tokens_are_text_however_they_are_written() -> None:
    """Plain or as an object; the first file that names one decides."""
    assert {"bos_token": "<s>", "eos_token": "</s>"} == special_tokens(
        {"bos_token": {"content": "<s>"}, "eos_token": None}, {"bos_token": "x", "eos_token": "</s>"}
    )
