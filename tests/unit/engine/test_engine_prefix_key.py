"""Names of pages: equal for equal keys and values alone."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from blake3 import blake3
from hypothesis import given

from services.engine.prefix_key import PAGE_TOKENS, Origin, Sharers, chain, root

ANYBODY = Sharers("", b"")
ORIGIN = Origin("a" * 64, "b" * 64, "torch.bfloat16")
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5 * PAGE_TOKENS)


def test_s_c5_no_fields_bytes_can_be_read_as_anothers() -> None:
    """S-C5: whatever salt is chosen, the revision's artifact among them, it meets no other artifact, graph, dtype, tenant or
    salt.

    Fault injection: turns red when `_digest` leaves out the lengths, or `root` any of its fields.
    """
    values = ["", "A", "C", "S", "CS", "a" * 64]
    names = [
        root(Origin(a, g, d), Sharers(c, s.encode())) for a, g, d, c, s in itertools.product(values, repeat=5)
    ]
    assert len(values) ** 5 == len(set(names))


def test_names_are_digests_of_fields_under_tags_and_with_their_lengths() -> None:
    """The bytes themselves, so that a field that is added one day cannot be read as one of these.

    Fault injection: turns red when `_digest` leaves out the tags.
    """
    first = root(Origin("art", "graph", "bf16"), Sharers("team", b"salt"))
    fields = b"A\x03\0\0\0art" + b"G\x05\0\0\0graph" + b"D\x04\0\0\0bf16"
    fields += b"C\x04\0\0\0team" + b"S\x04\0\0\0salt"
    assert blake3(fields).digest() == first
    page = b"".join(token.to_bytes(4, "little") for token in range(PAGE_TOKENS))
    fields = b"P\x20\0\0\0" + first + b"T\x40\0\0\0" + page
    assert [blake3(fields).digest()] == list(chain(first, range(PAGE_TOKENS)))


@given(TOKENS)
def test_every_whole_page_has_a_name_over_all_that_lies_before_it(tokens: list[int]) -> None:
    """One name for 16 tokens, none for the rest; other tokens, or another order, give other names from there on."""
    names = list(chain(root(ORIGIN, ANYBODY), tokens))
    assert len(tokens) // PAGE_TOKENS == len(set(names))
    if names:
        changed = [*tokens[:-PAGE_TOKENS], *((token + 1) % 2**31 for token in tokens[-PAGE_TOKENS:])]
        others = list(chain(root(ORIGIN, ANYBODY), changed))
        same = (len(tokens) - PAGE_TOKENS) // PAGE_TOKENS
        assert names[:same] == others[:same]
        assert not set(names[same:]) & set(others)
        assert not set(names) & set(chain(root(ORIGIN, Sharers("", b"x")), tokens))


@given(TOKENS, st.integers(0, 5))
def test_a_chain_goes_on_from_any_of_its_names(tokens: list[int], at: int) -> None:
    """So that the pages of an answer follow those of its prompt."""
    whole = list(chain(root(ORIGIN, ANYBODY), tokens))
    at = min(at, len(whole))
    parent = whole[at - 1] if at else root(ORIGIN, ANYBODY)
    assert whole[at:] == list(chain(parent, tokens[at * PAGE_TOKENS :]))
