"""Characters that steer a terminal, break a line, or turn the order of what is read, instead of being shown.

Unicode's control characters, its separators of lines and paragraphs, and what embeds, overrides or isolates a direction.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def first_in(text: str) -> str:
    """The first one; empty where there is none."""
    found = _CONTROL.search(text)
    return found[0] if found else ""


def escaped(text: str, *, keep: str = "") -> str:
    r"""With each of them, but those to `keep`, as JSON writes it (``\u001b``), so that JSON stays what it was."""

    def escape(found: re.Match[str]) -> str:
        return found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}"

    return _CONTROL.sub(escape, text)
