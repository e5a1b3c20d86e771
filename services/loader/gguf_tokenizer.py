"""The tokenizer inside a GGUF file, as Hugging Face's tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from services.common.errors import Unsupported

_SPECIAL: Final = 3  # token_type CONTROL (ggml-org/llama.cpp, gguf-py/gguf/constants.py, TokenType)

_BYTE_LEVEL: Final = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_WORDS: Final = (  # with contractions, single digits, punctuation with line ends, spaces
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS: Final[Mapping[str, list[dict[str, Any]]]] = {  # by GGUF's tokenizer.ggml.pre
    "gpt-2": [_BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False},
        {**_BYTE_LEVEL, "use_regex": False},
    ],
}
_NORMALIZERS: Final[Mapping[str, dict[str, Any]]] = {"qwen2": {"type": "NFC"}}


def tokenizer_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Byte-level BPE with the file's vocabulary and merges.

    Raises:
        Unsupported: Another kind of tokenizer, or an unknown way of splitting text before it.
    """
    model, pre = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2" or pre not in _PRE_TOKENIZERS:
        raise Unsupported(
            f"GGUF tokenizer {model!r} with pre-tokenizer {pre!r}; this build reads 'gpt2' with "
            f"{' or '.join(map(repr, _PRE_TOKENIZERS))}: convert the original Hugging Face checkpoint instead",
            reason="TOKENIZER_UNSUPPORTED",
        )
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_special(i, tokens[i]) for i, kind in enumerate(kinds) if kind == _SPECIAL],
        "normalizer": _NORMALIZERS.get(pre),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": _bpe({token: i for i, token in enumerate(tokens)}, metadata["tokenizer.ggml.merges"]),
    }


def _special(index: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content, **flags}


def _bpe(vocabulary: dict[str, int], merges: list[str]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": merges,
    }


def tokenizer_config_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens by name, and the chat template where the file has one."""
    tokens = metadata["tokenizer.ggml.tokens"]
    named = {
        "bos_token": "tokenizer.ggml.bos_token_id",
        "eos_token": "tokenizer.ggml.eos_token_id",
        "pad_token": "tokenizer.ggml.padding_token_id",
        "unk_token": "tokenizer.ggml.unknown_token_id",
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", False),
        "clean_up_tokenization_spaces": False,
        **{name: tokens[metadata[key]] for name, key in named.items() if key in metadata},
    }
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config
