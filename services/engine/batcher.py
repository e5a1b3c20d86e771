"""What one step computes: every running decode, and as much of the waiting prompts as a chunk allows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.engine.sequence import Phase, Sequence


class Share(NamedTuple):
    """The next `tokens` tokens of one sequence."""

    sequence: Sequence
    tokens: int


def plan(sequences: Iterable[Sequence], *, chunk_tokens: int, max_batch: int) -> list[Share]:
    """Shares one step among `sequences`, given in order of arrival.

    Decodes come every step, whatever prompts wait; prompts are computed first come, first served, at most
    `chunk_tokens` of them in total. So a long prompt delays a running stream by one chunk per step and no more.

    Args:
        sequences: None of them ended.
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most sequences under way at once; later arrivals wait.
    """
    left = chunk_tokens
    shares: list[Share] = []
    for sequence, _ in zip(sequences, range(max_batch), strict=False):
        if sequence.phase is Phase.DECODE:
            shares.append(Share(sequence, 1))
        elif left > 0:
            count = min(left, sequence.length - sequence.computed)
            shares.append(Share(sequence, count))
            left -= count
    return shares
