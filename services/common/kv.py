"""How much KV memory a request can need: the one formula that scheduler and engine share."""

from __future__ import annotations

from typing import Final

BLOCK_TOKENS: Final = 16


def worst_case_blocks(prompt_tokens: int, max_tokens: int, block_tokens: int) -> int:
    """Blocks that hold the prompt and every token that may be generated.

    The last generated token is never fed back, so its keys and values are never stored.
    """
    return -(-(prompt_tokens + max_tokens - 1) // block_tokens)
