"""What one step computes: every running decode, and as much of the waiting prompts as a chunk allows. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Ordered
from typing import Final, NamedTuple

from services.common.watermark import Level
from services.engine.sequence import Phase, Sequence

BACKGROUND_TOKENS: Final = 32  # of prompts, in a step that others wait for
_SHRUNK: Final = 2  # above the soft watermark new prompts get this part of a chunk at most


class Share(NamedTuple):
    """The next `tokens` tokens of one sequence."""

    sequence: Sequence
    tokens: int

    @property
    def is_due(self) -> bool:
        """Whether a new token follows, once they are computed."""
        return self.sequence.computed + self.tokens == self.sequence.length


class Line(NamedTuple):
    """Those who wait for one model, in order of arrival, whoever has begun first; none of them ended or set back.

    Attributes:
        is_background: Nobody waits for its answers: they are warm-ups or trials.
    """

    sequences: Collection[Sequence]
    is_background: bool = False


def plan(
    lines: Ordered[Line],
    *,
    chunk_tokens: int,
    max_batch: int,
    turn: int = 0,
    level: Level = Level.OPEN,
    beside_tokens: int | None = None,
) -> list[Share]:
    """Shares one step among the sequences of `lines`.

    Whoever has begun keeps its place, and decodes come every step, whatever prompts wait: a long prompt delays a
    running stream by one chunk per step and no more. Free places go to the lines in equal parts, and what one cannot
    use to the others; the chunk goes to one line after the other, step by step, and what one cannot use to the next.
    Within a line places go by order of arrival, and the chunk to whoever came first, or half of it where others have
    less left: the rest is theirs. So a short prompt waits for none but shorter ones, and the oldest has half of a chunk
    at least. A thousand prompts for one model hold up another's by no more than one prompt would.

    Args:
        lines: None of them empty.
        chunk_tokens: Most tokens of prompts in one step.
        max_batch: Most sequences under way at once; later arrivals wait.
        turn: The number of the step: what cannot be parted goes to one line after the other.
        level: Of memory: above the soft watermark new prompts get half of a chunk, and those who are nearest to
            their end go first; above the hard one nothing new begins beside what is under way.
        beside_tokens: Most tokens of prompts in a step that has decodes; as many as in any other when None.
    """
    if not lines:
        return []
    placed = _placed(lines, max_batch, turn, level)
    wanted = [sum(_prompt_rest(sequence) for sequence in group) for group in placed]
    if not all(line.is_background for line in lines):
        wanted = [_slice(line, tokens) for line, tokens in zip(lines, wanted, strict=True)]
    chunk_tokens = _chunk(placed, chunk_tokens, beside_tokens)
    given = _in_turn(chunk_tokens, wanted, turn)
    new_tokens = chunk_tokens if level is Level.OPEN else -(-chunk_tokens // _SHRUNK)
    last = _prompt_rest if level is Level.OPEN else _to_the_end
    return [
        share
        for group, tokens in zip(placed, given, strict=True)
        for share in _shares(group, tokens, new_tokens, last)
    ]


def _chunk(placed: list[list[Sequence]], chunk_tokens: int, beside_tokens: int | None) -> int:
    """Most tokens of prompts in this step.

    Every further model's weights are read for its own part of a step. With half a chunk beside them a step takes no
    longer than one of a single model does with all of it.
    """
    chunk_tokens = chunk_tokens if len(placed) == 1 else -(-chunk_tokens // 2)
    if beside_tokens is not None and any(_decodes(sequence) for group in placed for sequence in group):
        return min(chunk_tokens, beside_tokens)
    return chunk_tokens


def deal(total: int, wanted: Ordered[int], turn: int) -> list[int]:
    """Parts `total` so that nobody gets more than it wants, or more than another that still wants.

    Args:
        total: What there is.
        wanted: The most that each can use.
        turn: Who comes first where a rest cannot be parted, counted round.
    """
    given, order = [0] * len(wanted), _order(len(wanted), turn)
    while hungry := [place for place in order if given[place] < wanted[place]][:total]:
        each = total // len(hungry)
        for place in hungry:
            more = min(each, wanted[place] - given[place])
            given[place] += more
            total -= more
    return given


def _in_turn(total: int, wanted: Ordered[int], turn: int) -> list[int]:
    """Gives whose turn it is all that it wants, then the next what is left."""
    given = [0] * len(wanted)
    for place in _order(len(wanted), turn):
        given[place] = min(total, wanted[place])
        total -= given[place]
    return given


def _order(count: int, turn: int) -> list[int]:
    first = turn % max(1, count)
    return [*range(first, count), *range(first)]


def _placed(lines: Ordered[Line], max_batch: int, turn: int, level: Level) -> list[list[Sequence]]:
    """Of every line those who are under way or may begin: its first, for nobody overtakes within a line."""
    begun = [sum(1 for _ in _begun(line)) for line in lines]
    free = max_batch - sum(begun)
    if level is Level.HARD:
        free = min(free, 0 if any(begun) else 1)
    fair = deal(max_batch, [len(line.sequences) for line in lines], turn)
    placed: list[list[Sequence]] = []
    for line, running, quota in zip(lines, begun, fair, strict=True):
        new = max(0, min(quota - running, free))
        free -= new
        placed.append(list(itertools.islice(line.sequences, running + new)))
    return placed


def _begun(line: Line) -> Iterator[Sequence]:
    return itertools.takewhile(lambda sequence: sequence.phase is not Phase.WAITING, line.sequences)


def _slice(line: Line, tokens: int) -> int:
    return min(tokens, BACKGROUND_TOKENS) if line.is_background else tokens


def _decodes(sequence: Sequence) -> bool:
    return sequence.phase is Phase.DECODE and sequence.room > 0


def _prompt_rest(sequence: Sequence) -> int:
    return 0 if sequence.phase is Phase.DECODE else sequence.length - sequence.computed


def _shares(
    group: list[Sequence], tokens: int, new_tokens: int, last: Callable[[Sequence], int]
) -> Iterator[Share]:
    """Of a line's part: every decode that has room, and chunks of prompts."""
    prompts: list[Sequence] = []
    for sequence in group:
        if sequence.phase is not Phase.DECODE:
            prompts.append(sequence)
        elif _decodes(sequence):
            yield Share(sequence, 1)
    prompts[1:] = sorted(prompts[1:], key=last)
    is_first_least = len(prompts) < 2 or last(prompts[0]) <= last(prompts[1])
    yield from _chunks(prompts, tokens, new_tokens, tokens if is_first_least else -(-tokens // 2))


def _chunks(prompts: list[Sequence], left: int, new_left: int, first: int) -> Iterator[Share]:
    """Its part to the first; what it cannot use, or the others do not want, to the others, or the first; in that order.

    Args:
        prompts: The first in line, then the others, whoever goes first before the next.
        left: Tokens in all.
        new_left: How many of them may be of prompts that have not begun.
        first: How many are for the first at least.
    """
    most = max(first, left - sum(map(_prompt_rest, prompts[1:])))
    for sequence in prompts:
        is_new = sequence.phase is Phase.WAITING
        count = min(_prompt_rest(sequence), most, new_left if is_new else left)
        if count > 0:
            yield Share(sequence, count)
            left -= count
            new_left = min(left, new_left - count * is_new)
        most = left


def _to_the_end(sequence: Sequence) -> int:
    """The most tokens that are still to be computed of it."""
    return len(sequence.request.prompt) + sequence.request.sampling.max_tokens - sequence.computed
