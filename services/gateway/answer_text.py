"""The text of an answer as its token ids come in: decoded, and cut at a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.gateway.detokenizer import Detokenizer
from services.gateway.stop import StopMatcher


class Piece(NamedTuple):
    """Ids that belong to the answer, text that is certain, and the stop string that ended it, if one did."""

    token_ids: tuple[int, ...]
    text: str
    matched_stop: str | None


class AnswerText:
    """Decodes one answer."""

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher) -> None:
        self._detokenizer = detokenizer
        self._stops = stops

    def push(self, token_ids: Sequence[int]) -> Piece:
        """Takes the next ids; those after the one that completes a stop string are left out."""
        texts: list[str] = []
        for count, token_id in enumerate(token_ids, start=1):
            text, matched = self._stops.push(self._detokenizer.push(token_id))
            texts.append(text)
            if matched is not None:
                return Piece(tuple(token_ids[:count]), "".join(texts), matched)
        return Piece(tuple(token_ids), "".join(texts), None)

    def finish(self) -> Piece:
        """What was held back, when no more ids come; it may still complete a stop string."""
        text, matched = self._stops.push(self._detokenizer.finish())
        if matched is None:
            text += self._stops.finish()
        return Piece((), text, matched)
