"""How many tokens of prompts go into a step that running answers wait for: as many as keep it within a bound. Pure."""

from __future__ import annotations

from typing import Final

from services.common.kv import BLOCK_TOKENS

BOUND_S: Final = 0.2
_ROOM: Final = 0.5  # of the bound: below it the next step may be larger


class ChunkPace:
    """Halves what goes into a step when one took too long, and adds a block when one had room: as TCP does it.

    What a token of a prompt costs goes with the model, with how many models share a step, and with what else the
    machine does; this knows none of it (Chiu and Jain 1989, additive increase and multiplicative decrease).

    Args:
        most_tokens: Of prompts in one step, whatever it takes.
        bound_s: Seconds that a step may take which has both decodes and prompts.

    Attributes:
        tokens: Most of prompts in the next step that has decodes.
    """

    def __init__(self, most_tokens: int, bound_s: float = BOUND_S) -> None:
        self._most_tokens = most_tokens
        self._bound_s = bound_s
        self.tokens = most_tokens

    def hear(self, seconds: float, prompt_tokens: int, decodes: int) -> None:
        """A step has been computed.

        Args:
            seconds: It took.
            prompt_tokens: Of prompts in it.
            decodes: Running answers in it, each with one token.
        """
        if not prompt_tokens or not decodes:
            return
        if seconds > self._bound_s:
            self.tokens = max(min(BLOCK_TOKENS, self._most_tokens), min(self.tokens, prompt_tokens) // 2)
        elif seconds < self._bound_s * _ROOM and prompt_tokens >= self.tokens:
            self.tokens = min(self._most_tokens, self.tokens + BLOCK_TOKENS)
