"""One prompt on a source and on its artifact, each in a fresh process: what they say, and how soon."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from services.cli.console import CommandError
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.own_python import module_command

_NOT_INSTALLED: Final = 3  # reference_trial's exit status where it lacks packages
NEAR_TIE: Final = {
    DType.FP32: 1e-3,
    DType.BF16: 0.25,
    DType.FP16: 0.25,
}  # in logits; two sums may differ by so much


class NotInstalledError(CommandError):
    """The source's side needs packages that are not there; the line says which."""


class Trial(NamedTuple):
    """What one side said.

    Attributes:
        who: What computed it.
        tokens: Greedy token ids.
        margins: Of each, how far its logit was above the next.
        first_token_s: From the start of its process.
    """

    who: str
    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    first_token_s: float


def try_artifact(artifact: Path, prompt: Sequence[int]) -> Trial:
    """Has our engine answer from an artifact; raises CommandError with its own line."""
    return _run("halogen", "services.engine.trial", str(artifact), *map(str, prompt))


def try_source(source: Path, prompt: Sequence[int], dtype: DType) -> Trial:
    """Has transformers answer from a source, or our engine where it is an artifact.

    Raises:
        NotInstalledError: There is nothing that could answer from it.
        CommandError: It fails; the line is its own.
    """
    if (source / MANIFEST_NAME).is_file():
        return try_artifact(source, prompt)
    dtype = DType.FP32 if dtype is DType.FP16 else dtype  # as our engine computes what is stored in it
    asked = (str(source), *map(str, prompt), "--dtype", dtype)
    return _run("transformers", "services.engine.reference_trial", *asked)


def _run(who: str, module: str, *arguments: str) -> Trial:
    begun, first_token_s = time.monotonic(), 0.0
    said = []
    command = [*module_command(module), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            said.append(json.loads(line))
            first_token_s = first_token_s or time.monotonic() - begun
        complaint = (process.stderr.read() if process.stderr else "").strip().splitlines()
    if process.returncode == _NOT_INSTALLED:
        raise NotInstalledError(f"pip install {complaint[-1]}")
    if process.returncode != 0 or not said:
        raise CommandError(f"{who} cannot answer: {complaint[-1] if complaint else 'it says nothing'}")
    tokens, margins = (tuple(choice[name] for choice in said) for name in ("token", "margin"))
    return Trial(who, tokens, margins, first_token_s)


def equal_tokens(source: Trial, artifact: Trial) -> int:
    """How many tokens are equal before the first that is not."""
    pairs = zip(source.tokens, artifact.tokens, strict=True)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def is_faithful(source: Trial, artifact: Trial, dtype: DType) -> bool:
    """Whether both say the same up to a near tie: where rounding decides, they may go different ways."""
    place = equal_tokens(source, artifact)
    return place == len(source.tokens) or source.margins[place] < NEAR_TIE[dtype]
