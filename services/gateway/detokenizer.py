"""Token ids to text as they come."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from services.gateway.decoder import DecodedText


class Detokenizer:
    """The text of one answer: its pieces, joined, are what the tokenizer decodes from all the ids at once.

    Never gives half a character, nor a U+FFFD that the whole would not have. Constant work per token.

    Args:
        token_of: An id's token as the vocabulary spells it; None for ids it does not know, which say nothing.
        text: A fresh text of the tokenizer's decoder.
        silent: Ids without text: special tokens and those that end the answer.
    """

    def __init__(
        self, token_of: Callable[[int], str | None], text: DecodedText, silent: AbstractSet[int]
    ) -> None:
        self._token_of = token_of
        self._text = text
        self._silent = silent

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before; often empty, sometimes several characters."""
        token = None if token_id in self._silent else self._token_of(token_id)
        return "" if token is None else self._text.push(token)

    def finish(self) -> str:
        """The rest; a character that was never completed is U+FFFD."""
        return self._text.finish()
