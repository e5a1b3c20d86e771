"""How long answers of one model become, learned from those that have ended. Pure."""

from __future__ import annotations

import collections
import math
from typing import Final, NamedTuple

from services.common.ids import ArtifactId

_LAST: Final = 256  # answers that are remembered
_FEWEST: Final = 16  # below so many nothing is expected
_EVERY: Final = 8  # answers, between two estimates
_SHARE: Final = 0.75  # of the answers are to be no longer than expected
_ROUNDING: Final = 1e-9


class _Answer(NamedTuple):
    tokens: int
    is_whole: bool  # it ended by itself; else it was cut off and might have gone on


class AnswerLength:
    """Expects of the next answer what three of four of the last would not exceed, if nothing cut them off.

    An answer that ends by itself, or that its reader leaves, tells how long answers become; one that reaches its
    max_tokens tells only that they become longer than that. So it is the estimate of Kaplan and Meier (1958) over
    censored lengths: where answers hardly ever end by themselves, the worst case is what is expected.
    """

    def __init__(self) -> None:
        self._answers: collections.deque[_Answer] = collections.deque(maxlen=_LAST)
        self._heard = 0
        self._expected: float = math.inf

    @property
    def expected(self) -> int | None:
        """Tokens; None when nothing is known."""
        return None if math.isinf(self._expected) else int(self._expected)

    def hear(self, tokens: int, *, is_whole: bool) -> bool:
        """One has ended; tells whether something else is expected now.

        Args:
            tokens: How many it had.
            is_whole: Whether that is all it would have had.
        """
        self._answers.append(_Answer(max(1, tokens), is_whole))
        self._heard += 1
        if self._heard < _FEWEST or self._heard % _EVERY:
            return False
        before, self._expected = self._expected, self._estimate()
        return before != self._expected

    def _estimate(self) -> float:
        """The least length that at most a quarter survives."""
        alive, surviving = len(self._answers), 1.0
        for answer in sorted(self._answers, key=lambda it: (it.tokens, not it.is_whole)):
            if answer.is_whole:
                surviving *= 1 - 1 / alive
                if surviving <= 1 - _SHARE + _ROUNDING:
                    return answer.tokens
            alive -= 1
        return math.inf


class AnswerLengths:
    """The same of every model that answers here."""

    def __init__(self) -> None:
        self._lengths: collections.defaultdict[ArtifactId, AnswerLength] = collections.defaultdict(
            AnswerLength
        )

    def expected(self, artifact_id: ArtifactId) -> int:
        """Tokens; 0 when nothing is known."""
        return self._lengths[artifact_id].expected or 0

    def hear(self, artifact_id: ArtifactId, tokens: int, *, is_whole: bool) -> bool:
        """As `AnswerLength` has it."""
        return self._lengths[artifact_id].hear(tokens, is_whole=is_whole)

    def forget(self, artifact_id: ArtifactId) -> None:
        """It answers nobody any more."""
        self._lengths.pop(artifact_id, None)
