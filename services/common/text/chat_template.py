"""Chat templates as Hugging Face's tokenizers take them: where one is, and the sandbox that runs it."""

from __future__ import annotations

import collections
import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from services.common.errors import CorruptData
from services.common.text.template_meter import TooCostly, check_chars, check_modest, metered
from services.common.text.template_sandbox import TemplateSandbox

_WHERE: Final = "the chat template (chat_template.jinja, or else chat_template in tokenizer_config.json)"
_MAX_SOURCE_CHARS: Final = 128 << 10
_TRIED: Final = ({"role": "user", "content": "Hi"},)


def template_source(tokenizer_config: Mapping[str, Any], template_file: str | None) -> str | None:
    """The artifact's template: chat_template.jinja, or else the one or the default one in tokenizer_config.json."""
    configured = tokenizer_config.get("chat_template")
    if template_file is not None:
        return template_file
    if isinstance(configured, list):
        named = {entry["name"]: entry["template"] for entry in configured}
        configured = named.get("default")
    return configured if isinstance(configured, str) else None


def compile_template(source: str) -> jinja2.Template:
    """The template, to be run in jinja2's immutable sandbox.

    It is tried on a short conversation, so that one that asks for too much of any is found at once.

    Raises:
        CorruptData: It is not a template, or asks for too much.
    """
    if len(source) > _MAX_SOURCE_CHARS:
        raise CorruptData(
            f"{_WHERE} cannot be used: it has {len(source)} characters, over {_MAX_SOURCE_CHARS}"
        )
    try:
        template = _environment().from_string(source)
    except Exception as fault:  # jinja2's, and the Python compiler's of what jinja2 makes of it
        raise CorruptData(f"{_WHERE} cannot be read: {fault}") from fault
    _try(template)
    return template


def lay_out(
    template: jinja2.Template, conversation: Sequence[Mapping[str, str]], **names: str
) -> Iterator[str]:
    """The prompt up to where the model answers, in pieces; to be taken within `metered`.

    Args:
        template: One of `compile_template`; it may raise anything, TooCostly when it asks for too much.
        conversation: Messages with role and content.
        names: Its special tokens.
    """
    return template.generate(
        messages=conversation, tools=None, documents=None, add_generation_prompt=True, **names
    )


def _try(template: jinja2.Template) -> None:
    try:
        with metered():
            collections.deque(lay_out(template, _TRIED, bos_token="", eos_token=""), maxlen=0)
    except TooCostly as fault:
        raise CorruptData(f"{_WHERE} cannot be used: {fault}") from fault
    except Exception:  # noqa: BLE001, S110  # it may refuse such a conversation
        pass


class _Generation(Extension):
    """Lets ``{% generation %}``, which marks what an assistant said for training, stand for its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> TemplateSandbox:
    environment = TemplateSandbox(
        {"tojson": _to_json}, trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # templates call it so
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    pieces, size = [], 0
    for piece in encoder.iterencode(value):  # where it indents, much can come of little
        size += len(piece)
        check_chars(size)
        pieces.append(piece)
    return "".join(pieces)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    check_modest((pattern,))
    return dt.datetime.now(dt.UTC).astimezone().strftime(pattern)
