"""Detokenizing: what comes out piece by piece is what the tokenizer makes of the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from services.common.errors import Unsupported
from services.gateway.decoder import Decoder
from services.gateway.detokenizer import Detokenizer
from services.gateway.tokenizer import TextTokenizer

EXOTIC = (
    "\U0001fae0\U0001f979 \u9f9c P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148 \u00e1"
)
Texts = st.one_of(
    st.text(), st.text("ab \u00e1\u0159\u9f9c\U0001fae0\U0001f979\ufffd"), st.text("the in a .,\n")
)
KINDS = ["byte_level_json", "byte_fallback_json"]


@pytest.fixture(params=KINDS)
def tokenizer_json(request: pytest.FixtureRequest) -> bytes:
    content: bytes = request.getfixturevalue(request.param)
    return content


@pytest.fixture
def whole(tokenizer_json: bytes) -> Tokenizer:
    """The tokenizers package itself, as the reference."""
    return Tokenizer.from_str(tokenizer_json.decode())


@pytest.fixture
def ours(tokenizer_json: bytes) -> TextTokenizer:
    return TextTokenizer(tokenizer_json)


def pieces(detokenizer: Detokenizer, token_ids: list[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.finish()]


def check_prefixes(whole: Tokenizer, token_ids: list[int], parts: list[str]) -> None:
    """All that has come out is at every moment a prefix of the whole, and at the end all of it."""
    text, out = whole.decode(token_ids, skip_special_tokens=True), ""
    for part in parts:
        out += part
        assert text.startswith(out)
    assert text == out


# Turns red when: ByteLevel.push returns (data.decode("utf-8", "replace"),) and
# ByteFallback.push returns (bytes([int(byte[1], 16)]).decode("utf-8", "replace"),) for a byte token.
def test_s_d4_no_character_comes_out_in_halves(whole: Tokenizer, ours: TextTokenizer) -> None:
    """Emoji, CJK and Czech, none of them a whole token here, come out whole, without U+FFFD."""
    token_ids = whole.encode(EXOTIC, add_special_tokens=False).ids
    assert len(EXOTIC) < len(token_ids), "the text must need several tokens per character"
    parts = pieces(ours.detokenizer(), token_ids)
    assert EXOTIC == "".join(parts)
    assert [] == [part for part in parts if "\ufffd" in part]


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_comes_back(kind: str, request: pytest.FixtureRequest) -> None:
    """Texts of every script, piece by piece, equal the whole decoding."""
    content: bytes = request.getfixturevalue(kind)
    whole, ours = Tokenizer.from_str(content.decode()), TextTokenizer(content)

    @given(Texts)
    @example(EXOTIC)
    @example("  two spaces  ")
    def check(text: str) -> None:
        token_ids = whole.encode(text, add_special_tokens=False).ids
        check_prefixes(whole, token_ids, pieces(ours.detokenizer(), token_ids))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_any_ids_give_what_the_tokenizer_gives(kind: str, request: pytest.FixtureRequest) -> None:
    """A model may say anything, also bytes that are no text: U+FFFD is where the whole has it, nowhere else."""
    content: bytes = request.getfixturevalue(kind)
    whole, ours = Tokenizer.from_str(content.decode()), TextTokenizer(content)
    ids = st.integers(0, whole.get_vocab_size() - 1)
    bytes_mostly = st.integers(94, 260) if kind == "byte_level_json" else st.integers(3, 262)

    @given(st.lists(st.one_of(ids, bytes_mostly), max_size=24))
    def check(token_ids: list[int]) -> None:
        check_prefixes(whole, token_ids, pieces(ours.detokenizer(), token_ids))

    check()


def test_special_and_ending_tokens_have_no_text(ours: TextTokenizer, whole: Tokenizer) -> None:
    """Special tokens are left out, and so is the token that ends an answer, special or not."""
    [ending] = whole.encode("a", add_special_tokens=False).ids[-1:]
    detokenizer = ours.detokenizer(ending=[ending])
    assert ["", "", ""] == pieces(detokenizer, [0, ending])


def test_ids_beyond_the_vocabulary_have_no_text(ours: TextTokenizer) -> None:
    """A model's padded vocabulary may be larger than its tokenizer's."""
    assert ["", ""] == pieces(ours.detokenizer(), [100_000])


def test_an_added_token_is_written_as_itself() -> None:
    """Byte-level BPE's own letters stand for bytes; a token outside them stands for itself."""
    text = Decoder({"type": "ByteLevel"}).start()
    assert "<tool call>\u9f9c" == text.push("<tool call>") + text.push("\u9f9c")
    assert decoders.ByteLevel().decode(["<tool call>", "\u9f9c"]) == "<tool call>\u9f9c"


METASPACE = decoders.Metaspace()
UNTOUCHED = decoders.Metaspace(prepend_scheme="never")
GEMMA = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])


@pytest.mark.parametrize("reference", [METASPACE, UNTOUCHED, GEMMA], ids=["metaspace", "never", "gemma"])
def test_other_sentencepiece_decoders_are_followed(reference: Any) -> None:
    """Metaspace in both forms, and a decoder that strips nothing, give what the package gives."""

    @given(st.lists(st.sampled_from(["\u2581", "\u2581\u2581a\u2581", "b", "\u2581c", "<0xC3>", "<0xA1>"])))
    def check(tokens: list[str]) -> None:
        text = Decoder(json.loads(reference.__getstate__())).start()
        out = "".join([text.push(token) for token in tokens]) + text.finish()
        assert reference.decode(tokens) == out

    check()


def test_without_a_decoder_tokens_are_spaced() -> None:
    """A tokenizer without a decoder puts a space between tokens, and so do we."""
    text = Decoder(None).start()
    assert "a b" == text.push("a") + text.push("b") + text.finish()


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace"}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
        },
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "b"}],
        },
    ],
)
def test_a_decoder_that_cannot_be_followed_exactly_is_refused(spec: dict[str, Any]) -> None:
    """Rather than guess, the model is refused when it is loaded, and the stage is named."""
    with pytest.raises(Unsupported, match="cannot be streamed exactly"):
        Decoder(spec)
