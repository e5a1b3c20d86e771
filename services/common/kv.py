"""How much KV memory a request can need: the formulas that scheduler and engine share."""

from __future__ import annotations

from typing import Final

BLOCK_TOKENS: Final = 16


def worst_case_blocks(prompt_tokens: int, max_tokens: int, block_tokens: int) -> int:
    """Blocks that hold the prompt and every token that may be generated.

    The last generated token is never fed back, so its keys and values are never stored.
    """
    return -(-(prompt_tokens + max_tokens - 1) // block_tokens)


def expected_blocks(prompt_tokens: int, max_tokens: int, block_tokens: int, expected_tokens: int = 0) -> int:
    """Blocks that are set aside for a request at first; what it needs beyond them comes later.

    Args:
        prompt_tokens: Of its prompt.
        max_tokens: The most that may be generated.
        block_tokens: Of a block.
        expected_tokens: What an answer is expected to have; 0 when nothing is known, which is the worst case.
    """
    return worst_case_blocks(prompt_tokens, min(max_tokens, expected_tokens or max_tokens), block_tokens)
