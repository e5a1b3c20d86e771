"""Tokenizers of both kinds that language models use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers

STORIES = Path(__file__).parents[2] / "models" / "stories-v1"


@pytest.fixture(scope="session")
def byte_level_json() -> bytes:
    """Byte-level BPE with 512 tokens, a special one among them."""
    return (STORIES / "tokenizer.json").read_bytes()


@pytest.fixture(scope="session")
def byte_fallback_json() -> bytes:
    """Sentencepiece's way: a mark for every space, bytes for what the vocabulary lacks, a space put before all."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz.,!", "▁a", "▁th", "he", "▁the", "in", "á"]
    merges = [("▁", "a"), ("h", "e"), ("i", "n")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    content: str = tokenizer.to_str()
    return content.encode()


@pytest.fixture
def stories_files(byte_level_json: bytes) -> dict[str, bytes]:
    """The text files of a small model with a chat template."""
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    return {
        "config.json": (STORIES / "config.json").read_bytes(),
        "tokenizer.json": byte_level_json,
        "tokenizer_config.json": json.dumps(
            {"chat_template": template, "eos_token": "<|endoftext|>"}
        ).encode(),
        "generation_config.json": json.dumps({"eos_token_id": 0}).encode(),
    }
