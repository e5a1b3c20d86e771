"""Stop strings: exact cuts, and nothing held back without need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.stop import StopMatcher

Stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4)


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher, out = StopMatcher(stops), []
    for piece in pieces:
        text, matched = matcher.push(piece)
        out.append(text)
        if matched is not None:
            return out, matched
    return [*out, matcher.finish()], None


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """The match that ends first, the longer of two that end together, by trying everything."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


# Turns red when: `free` in StopMatcher.push is len(pending) (nothing is held back).
def test_s_d1_the_start_of_a_stop_string_is_never_given_out() -> None:
    """A model that says ABCDEFGHIJK, letter by letter, with stop DEFGHIJ gives "ABC" and no more."""
    out, matched = run(["DEFGHIJ"], list("ABCDEFGHIJK"))
    assert "ABC" == "".join(out)
    assert "DEFGHIJ" == matched


# Turns red when: `free` in StopMatcher.push is max(0, len(pending) - max(len(n.text) - 1 for n in self._needles)).
def test_s_d2_text_that_no_stop_string_begins_with_goes_out_at_once() -> None:
    """A stop string that nothing matches holds nothing back: every piece goes out in its own step."""
    pieces = ["<th", "ink>", " yes", "</think>", " done"]
    out, matched = run(["zzzzzzzzzz"], pieces)
    assert [*pieces, ""] == out
    assert None is matched


def test_what_was_held_back_in_vain_goes_out_with_the_next_text() -> None:
    """Only the suffix that may still match waits, and no longer than it may."""
    out, _ = run(["stop"], ["a st", "op", ""])
    assert ["a ", ""] == out
    out, _ = run(["stop"], ["a st", "ep"])
    assert ["a ", "step", ""] == out


def test_held_text_goes_out_at_the_end() -> None:
    """An answer that ends in the middle of a stop string keeps that text."""
    assert (["a ", "sto"], None) == run(["stop"], ["a sto"])


def test_the_earliest_match_wins() -> None:
    """Of several stop strings the one that is complete first ends the answer."""
    out, matched = run(["bcd", "c"], ["abcd"])
    assert ("ab", "c") == ("".join(out), matched)


def test_of_two_that_end_together_the_longer_wins() -> None:
    """A stop string that ends another one takes nothing from it."""
    out, matched = run(["\n", "\n\n"], ["a\n"])
    assert ("a", "\n") == ("".join(out), matched)
    out, matched = run(["c", "bc"], ["abc"])
    assert ("a", "bc") == ("".join(out), matched)


def test_a_stop_string_may_overlap_itself() -> None:
    """The search goes back exactly as far as the stop string's own repetition allows."""
    out, matched = run(["aab"], list("aaaab"))
    assert ("aa", "aab") == ("".join(out), matched)


@given(Stops, st.lists(st.text("abc", max_size=5), max_size=8))
def test_the_cut_does_not_depend_on_the_pieces(stops: list[str], pieces: list[str]) -> None:
    """However the text is cut, the result is the one of trying every position of the whole."""
    out, matched = run(stops, pieces)
    assert reference(stops, "".join(pieces)) == ("".join(out), matched)


@given(Stops.filter(bool), st.text("abc", max_size=12))
def test_exactly_the_longest_possible_beginning_is_held(stops: list[str], text: str) -> None:
    """At every moment what has gone out is all but the longest suffix that may still become a stop string."""
    matcher, out = StopMatcher(stops), ""
    for position, char in enumerate(text, start=1):
        cut = matcher.push(char)
        out += cut.text
        if cut.matched is not None:
            return
        seen = text[:position]
        starts = [stop[:size] for stop in stops for size in range(1, len(stop))]
        held = max((len(start) for start in starts if seen.endswith(start)), default=0)
        assert seen[: len(seen) - held] == out
