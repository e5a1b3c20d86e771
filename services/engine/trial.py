"""``python -m services.engine.trial ARTIFACT ID…``: an artifact continues one prompt, greedily, without a system.

The weights are mapped where they lie, and verified by nobody. Prints a JSON object a line, as soon as each token is
chosen: ``{"token": …, "margin": …}``. The margin is how far its logit is above the next.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.manifest import PATHS, Role
from services.common.errors import HalogenError
from services.common.ids import RequestId
from services.common.telemetry.logs import configure_logs
from services.engine.arena import Arena
from services.engine.batcher import Line, plan
from services.engine.host import usable_cores
from services.engine.kernels.choice import choose_kernels
from services.engine.loaded_model import ModelLoading, ModelOnArena, PreparedArtifact
from services.engine.ragged import Ragged
from services.engine.sequence import Sampling, Sequence, TokenRequest

_ARENA_BYTES: Final = 256 << 20
_CHUNK_TOKENS: Final = 512


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A token, and how far its logit is above the next."""

    token: int
    margin: float


def continuation(artifact: Path, prompt: Ordered[int], tokens: int) -> Iterator[Choice]:
    """Yields the greedy continuation of a prompt, `tokens` long, past any end of text.

    Args:
        artifact: An artifact directory.
        prompt: Token ids.
        tokens: How many are wanted.

    Raises:
        HalogenError: The artifact cannot be read, or this engine does not compute it.
    """
    threads = usable_cores()
    torch.set_num_threads(threads)
    stored = StoredArtifact(artifact, read_manifest(artifact))
    arena = Arena(_ARENA_BYTES)
    kernels = choose_kernels("auto", threads)
    loading = ModelLoading(arena=arena, kernels=kernels, dtype="auto", max_model_len=0)
    yield from decode(loading.load(_prepared(stored)), arena, prompt, tokens)


def _prepared(stored: StoredArtifact) -> PreparedArtifact:
    """The artifact as a loader would hand it over."""
    weights = stored.manifest.weights
    return PreparedArtifact(
        artifact_id=stored.manifest.id,
        weights=stored.path(weights),
        identity=weights.sha256,
        config=(stored.directory / PATHS[Role.CONFIG]).read_bytes(),
    )


def decode(model: ModelOnArena, arena: Arena, prompt: Ordered[int], tokens: int) -> Iterator[Choice]:
    """Yields what a model says greedily, on the arena that it was loaded on."""
    request = TokenRequest(id=RequestId("trial"), prompt=prompt, sampling=Sampling(max_tokens=tokens))
    with arena.pool.reserve(model.block_bytes, request.worst_case_blocks) as reservation:
        sequence = Sequence(request, reservation)
        while sequence.generated < tokens:
            share = plan([Line([sequence])], chunk_tokens=_CHUNK_TOKENS, max_batch=1)[0]
            sequence.cover(share.tokens)
            rows = model.forward(Ragged.of([share]))
            if sequence.advance(share.tokens):
                choice = _greedy(rows[0])
                sequence.append(choice.token)
                yield choice


def _greedy(logits: npt.NDArray[np.float32]) -> Choice:
    second, first = np.partition(logits, -2)[-2:]
    return Choice(int(logits.argmax()), float(first - second))


def main(argv: Ordered[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("prompt", type=int, nargs="+", metavar="ID")
    parser.add_argument("--tokens", type=int, default=16, help="how many to choose")
    options = parser.parse_args(argv)
    configure_logs("trial", "warning")
    try:
        for choice in continuation(options.artifact, options.prompt, options.tokens):
            print(json.dumps(dataclasses.asdict(choice)), flush=True)  # noqa: T201  # a command's own output
    except HalogenError as failure:
        print(failure.message, file=sys.stderr)  # noqa: T201  # a command's own output
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
