"""What an artifact answers when it is asked one thing at a time, and how answers under load compare with that."""

from __future__ import annotations

from collections.abc import Sequence

from bench.ask import Ask
from bench.swap_load import Answer, Load
from services.common.ids import ArtifactId


class Oracle:
    """The pure runs.

    Args:
        load: Asks.
        asks: All that will be asked.
    """

    def __init__(self, load: Load, asks: Sequence[Ask]) -> None:
        self._load = load
        self._asks = asks
        self._pure: dict[tuple[ArtifactId, Ask], tuple[int, ...]] = {}

    async def learn(self, artifact_id: ArtifactId) -> None:
        """Asks everything, one after another, of the artifact, which alone is served."""
        for answer in await self._answers(artifact_id):
            self._pure[artifact_id, answer.ask] = tuple(answer.token_ids)

    async def differences(self, artifact_id: ArtifactId) -> int:
        """How many of its answers are others now than they were."""
        return sum(self.wrong_tokens(answer) > 0 for answer in await self._answers(artifact_id))

    def wrong_tokens(self, answer: Answer) -> int:
        """Tokens that are not those of the artifact that the answer named first, and those that lack or are too many.

        An answer that failed is compared as far as it came.
        """
        seen = answer.token_ids
        if not answer.artifact_ids:
            return len(seen)
        right = self._pure[answer.artifact_ids[0], answer.ask]
        lacking = 0 if answer.error else abs(len(right) - len(seen))
        return lacking + sum(one != other for one, other in zip(seen, right, strict=False))

    async def _answers(self, artifact_id: ArtifactId) -> list[Answer]:
        load = self._load.again()
        answers = [await load.ask(ask) for ask in self._asks]
        for answer in answers:
            if not answer.is_sound or answer.artifact_ids[0] != artifact_id:
                raise RuntimeError(f"a quiet request was not answered by {artifact_id[:12]}: {answer}")
        return answers
