"""Control characters: found, and shown as JSON writes them."""

from __future__ import annotations

import json

import pytest

from services.common.control_characters import escaped, first_in

FOUND = ["\0", "\t", "\n", "\x1b", "\x7f", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066"]


@pytest.mark.parametrize("character", FOUND)
def test_a_control_character_is_found_and_escaped(character: str) -> None:
    """Wherever it stands."""
    assert character == first_in(f"before{character}after")
    assert f"before\\u{ord(character):04x}after" == escaped(f"before{character}after")
    assert character == escaped(character, keep=character)


def test_words_of_any_language_are_left_alone() -> None:
    """Joiners, accents, emoji and hard spaces steer nothing."""
    words = "größer\u00a0als क्\u200dष, می\u200cخواهم, 👩\u200d💻"
    assert "" == first_in(words)
    assert words == escaped(words)


def test_json_stays_what_it_was() -> None:
    """Once escaped, it is read as the same. Fault injection: turns red when characters are escaped in Python's way."""
    told = {"who": "".join(FOUND), "why": "ä"}
    assert told == json.loads(escaped(json.dumps(told, ensure_ascii=False, indent=2), keep="\n"))
