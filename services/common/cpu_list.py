"""Processors as the kernel lists them: ``0-3,8``."""

from __future__ import annotations


def parse_cpus(text: str) -> frozenset[int]:
    """The numbers in a list; none in an empty one.

    Raises:
        ValueError: It is no such list.
    """
    return frozenset(cpu for part in text.split(",") if part.strip() for cpu in _span(part))


def _span(part: str) -> range:
    first, dash, last = part.strip().partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ValueError(f"{part.strip()!r} is no processor and no span of them, as in 0-3,8")
    return range(int(first), int(last) + 1)
