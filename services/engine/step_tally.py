"""What the steps have computed so far. Pure counts: the step thread writes them, anyone reads them."""

from __future__ import annotations

import collections
from collections.abc import Iterable

from services.engine.batcher import Share
from services.engine.sequence import Phase


class StepTally:
    """Counts since the engine started; warm-up steps count too.

    Attributes:
        prompt_tokens: Tokens of prompts computed.
        decoded_tokens: Tokens of running answers computed, one of each in a step.
        generated_tokens: Tokens chosen.
        sizes: How many times so many tokens were computed together.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.decoded_tokens = 0
        self.generated_tokens = 0
        self.sizes: collections.Counter[int] = collections.Counter()

    def add(self, shares: Iterable[Share]) -> None:
        """Counts what has been computed together; asked before the sequences move on."""
        prompt, decoded = 0, 0
        for share in shares:
            if share.sequence.phase is Phase.DECODE:
                decoded += share.tokens
            else:
                prompt += share.tokens
        self.prompt_tokens += prompt
        self.decoded_tokens += decoded
        self.sizes[prompt + decoded] += 1
