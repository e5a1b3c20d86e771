"""Chat templates as Hugging Face's tokenizers take them: where one is, and the sandbox that runs it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.common.errors import CorruptData


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

    Raises:
        CorruptData: It is not a template.
    """
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as fault:
        raise CorruptData(f"the chat template cannot be read: {fault}") from fault


class _Generation(Extension):
    """Lets ``{% generation %}``, which marks what an assistant said for training, stand for its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
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
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return dt.datetime.now(dt.UTC).astimezone().strftime(pattern)
