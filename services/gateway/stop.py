"""Exact stop strings over a stream of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """Text that may go out, and the stop string that ended the answer, if one did."""

    text: str
    matched: str | None = None


class StopMatcher:
    """Finds the first of several stop strings, however the text is cut into pieces.

    Holds back only the longest suffix that may still become a stop string. The match that is complete first
    wins, of two that end together the longer: so the result does not depend on the pieces. The work per
    character is constant (Knuth, Morris and Pratt 1977, one automaton per stop string).

    Args:
        stops: Stop strings, none empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._needles = [_Needle(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def push(self, text: str) -> Cut:
        """Takes the next text; after a match nothing more may be pushed."""
        if not self._needles:
            return Cut(text)
        pending = self._held + text
        for position, char in enumerate(text, start=len(self._held) + 1):
            matched = self._advance(char)
            if matched is not None:
                self._held = ""
                return Cut(pending[: position - len(matched)], matched)
        free = len(pending) - max(needle.depth for needle in self._needles)
        self._held = pending[free:]
        return Cut(pending[:free])

    def finish(self) -> str:
        """What was held back, when the text has ended without a match."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        matched = None
        for needle in self._needles:  # longest first
            if needle.advance(char) and matched is None:
                matched = needle.text
        return matched


class _Needle:
    """One stop string and how many of its characters the text ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self._borders = _borders(text)

    def advance(self, char: str) -> bool:
        """Whether the text, with `char`, ends with the whole stop string."""
        depth = self.depth
        while depth and self.text[depth] != char:
            depth = self._borders[depth - 1]
        if self.text[depth] == char:
            depth += 1
        self.depth = depth
        return depth == len(self.text)


def _borders(text: str) -> list[int]:
    """For every prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    borders, length = [0], 0
    for char in text[1:]:
        while length and text[length] != char:
            length = borders[length - 1]
        if text[length] == char:
            length += 1
        borders.append(length)
    return borders
