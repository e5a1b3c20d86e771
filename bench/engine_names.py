"""What contenders are called."""

from __future__ import annotations

from typing import Final

OURS: Final = "halogen"
SERVED_OURS: Final = "halogen-served"  # beside ours without its wire
VLLM: Final = "vllm"
LLAMACPP: Final = "llamacpp"
EVERYBODY: Final = (OURS, VLLM, LLAMACPP)
