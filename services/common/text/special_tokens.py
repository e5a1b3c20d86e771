"""The special tokens that a tokenizer's configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def special_tokens(*configs: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that the configurations name, as text; the first that names one decides."""
    found: dict[str, str] = {}
    for name in _NAMES:
        for config in configs:
            value = config.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found.setdefault(name, text)
    return found
