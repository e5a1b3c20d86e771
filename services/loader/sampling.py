"""Which parts of a tensor stand for all of it."""

from __future__ import annotations

from typing import Final

_MOST_STRETCHES: Final = 7  # odd, so that one lies in the middle
_FEWEST_STRETCHES: Final = 3  # beginning, middle, end


def sampled_stretches(elements: int, grain: int, most: int) -> tuple[range, ...]:
    """Stretches of a tensor's elements, evenly from its beginning to its end; all of it where that is no more.

    Args:
        elements: In the tensor, row-major.
        grain: Elements that are read together; `elements` is a multiple of it.
        most: Elements in all stretches together, unless three grains are more.
    """
    grains = elements // grain
    count = min(max(most // grain, _FEWEST_STRETCHES), _MOST_STRETCHES)
    length = max(most // (count * grain), 1)
    if count * length >= grains:
        return (range(elements),)
    begins = (place * (grains - length) // (count - 1) for place in range(count))
    return tuple(range(begin * grain, (begin + length) * grain) for begin in begins)
