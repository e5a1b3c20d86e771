"""An artifact's representative requests through a gateway's own text side, before anybody's request goes that way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from services.common.errors import CorruptData, InvalidRequest
from services.common.text.representative_prompts import MOST_WARMED
from services.common.text.representative_requests import FILE, RepresentativeRequest, read_requests
from services.gateway.chat import Message
from services.gateway.request import ChatPrompt, Prompt, TextPrompt
from services.gateway.text_model import TextModel

_SHOWN_TOKENS: Final = 512  # of a prompt that are turned back into text


async def rehearse(text: TextModel, files: Mapping[str, bytes]) -> None:
    """Lays out, encodes and decodes the artifact's representative requests, if it has any.

    Args:
        text: What was made of the files.
        files: Name to content.

    Raises:
        CorruptData: One is none that this gateway could answer; names it.
    """
    if FILE not in files:
        return
    for request in read_requests(files[FILE])[:MOST_WARMED]:
        try:
            ids = await text.encode(_prompt(request))
        except InvalidRequest as fault:
            raise CorruptData(
                f"{FILE}: request {request.number} is refused: {fault.message}",
                reason="REPRESENTATIVE_REQUESTS",
            ) from None
        await asyncio.to_thread(text.tokenizer.decode, ids[-_SHOWN_TOKENS:])


def _prompt(request: RepresentativeRequest) -> Prompt:
    if request.prompt is not None:
        return TextPrompt(request.prompt)
    return ChatPrompt(tuple(Message(each["role"], each["content"]) for each in request.messages))
