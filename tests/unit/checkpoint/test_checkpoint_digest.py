"""Digests of streams and canonical texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint import canonical
from services.common.checkpoint.digest import (
    BLOCK_BYTES,
    BlockDigester,
    block_count,
    block_digest,
    split_blocks,
)


@given(st.integers(0, 2 * BLOCK_BYTES + 5), st.lists(st.integers(1, 3 * BLOCK_BYTES), max_size=4))
def test_a_stream_is_digested_block_by_block(length: int, cuts: list[int]) -> None:
    """However a stream is cut into pieces, its digests are those of its blocks."""
    data = memoryview(bytes(range(251)) * (length // 251 + 1))[:length]
    digester = BlockDigester()
    begin = 0
    for cut in [*cuts, length]:
        digester.update(data[begin : begin + cut])
        begin += cut
    expected = tuple(block_digest(data[begin:end]) for begin, end in split_blocks(length))
    assert expected == digester.finish()
    assert block_count(length) == len(expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_canonical_json_is_read_back(value: object) -> None:
    """One value, one text, and back."""
    text = canonical.encode(value)
    assert value == canonical.decode(text)
    assert text == canonical.encode(canonical.decode(text))


@pytest.mark.parametrize(
    "text", [b' {"a":1}', b'{"a": 1}', b'{"b":1,"a":1}', b'{"a":1,"a":1}', b"1.0e0", b"NaN", b"Infinity", b"[", b"\xe9"]
)  # fmt: skip
def test_other_texts_of_a_value_are_refused(text: bytes) -> None:
    """Spaces, order, repetition, other spellings and other alphabets all fail."""
    with pytest.raises(ValueError):  # noqa: PT011  # whichever of its kinds
        canonical.decode(text)
