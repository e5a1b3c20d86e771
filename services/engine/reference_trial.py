"""``python -m services.engine.reference_trial SRC ID…``: transformers continues one prompt, greedily.

What `services.engine.trial` is compared with: it prints the same lines. SRC is a Hugging Face directory or a GGUF
file. transformers (and accelerate, which it wants for GGUF) is no part of halogen: where it is not installed, the
exit status is 3 and standard error says so.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

NOT_INSTALLED: Final = 3

_TORCH: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def continuation(source: Path, dtype: torch.dtype, prompt: Sequence[int], tokens: int) -> Iterator[Any]:
    """Yields token and margin of the greedy continuation, past any end of text."""
    model = _load(source, dtype)
    given, cache = torch.tensor([list(prompt)]), None
    with torch.inference_mode():
        for _ in range(tokens):
            output = model(given, past_key_values=cache, use_cache=True)
            values, ids = output.logits[0, -1].float().topk(2)
            yield {"token": int(ids[0]), "margin": float(values[0] - values[1])}
            given, cache = ids[:1].view(1, 1), output.past_key_values


def _load(source: Path, dtype: torch.dtype) -> Any:
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    where = {"gguf_file": source.name} if source.is_file() else {}
    directory = source.parent if source.is_file() else source
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **where).eval()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("prompt", type=int, nargs="+", metavar="ID")
    parser.add_argument("--tokens", type=int, default=16, help="how many to choose")
    parser.add_argument("--dtype", choices=_TORCH, required=True, help="what to compute in")
    options = parser.parse_args(argv)
    wanted = ("transformers", "accelerate") if options.source.is_file() else ("transformers",)
    if missing := [name for name in wanted if importlib.util.find_spec(name) is None]:
        print(" ".join(missing), file=sys.stderr)  # noqa: T201  # a command's own output
        return NOT_INSTALLED
    for choice in continuation(options.source, _TORCH[options.dtype], options.prompt, options.tokens):
        print(json.dumps(choice), flush=True)  # noqa: T201  # a command's own output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
