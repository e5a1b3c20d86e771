"""Conversations laid out by a model's own chat template, as Hugging Face's tokenizers do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from services.common.errors import InvalidRequest
from services.common.text.chat_template import compile_template, lay_out
from services.common.text.template_meter import metered

_SHOWN: Final = 300  # characters of a template's own message that are passed on


class Message(NamedTuple):
    role: str
    content: str


class ChatTemplate:
    """A compiled chat template.

    It belongs to the artifact and is not trusted: it runs in jinja2's immutable sandbox, and every turn of a loop,
    call, operator and value spends of a fixed number of steps, so that it ends within seconds. A layout near that
    bound keeps its thread so long; what is counted is a list of all that is known to cost, not a wall.

    Args:
        source: The template.
        special_tokens: What it may call bos_token, eos_token and so on.
        max_chars: Most characters of a prompt that it may lay out.

    Raises:
        CorruptData: It is not a template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str], max_chars: int) -> None:
        self._template = compile_template(source)
        self._special_tokens = dict(special_tokens)
        self._max_chars = max_chars

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt that the messages make, up to where the model answers.

        Raises:
            InvalidRequest: The template refuses the messages, fails on them or makes too much of them.
        """
        conversation = [message._asdict() for message in messages]
        try:
            with metered():
                return self._bounded(conversation)
        except InvalidRequest:
            raise
        except Exception as fault:  # a template can raise anything
            raise InvalidRequest(
                f"the model's chat template does not take these messages: {str(fault)[:_SHOWN]}",
                reason="CHAT_TEMPLATE_REFUSED",
            ) from fault

    def _bounded(self, conversation: list[dict[str, Any]]) -> str:
        pieces, size = [], 0
        for piece in lay_out(self._template, conversation, **self._special_tokens):
            size += len(piece)
            if size > self._max_chars:
                raise InvalidRequest(
                    f"the chat template makes more than {self._max_chars} characters of these messages; shorten them",
                    reason="PROMPT_TOO_LARGE",
                )
            pieces.append(piece)
        return "".join(pieces)
