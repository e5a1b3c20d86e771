"""Greedy decoding on a loaded model, step by step, with every row of logits kept: what exactness tests compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence as Ordered
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.common.checkpoint.manifest import Manifest
from services.engine.arena import Arena
from services.engine.batcher import Line, plan
from services.engine.kernels.protocol import Kernels
from services.engine.kv_format import KvChoice
from services.engine.loaded_model import ModelLoading, ModelOnArena, PreparedArtifact
from services.engine.model.weights import DTypeChoice
from services.engine.ragged import Ragged
from services.engine.sequence import Sequence
from tests.unit.engine.fakes import request

Prompt = Ordered[int]
Logits = npt.NDArray[np.float32]


def prepared(artifact: Path) -> PreparedArtifact:
    """An artifact's directory, as a loader would hand it over."""
    manifest = Manifest.decode((artifact / "manifest.json").read_bytes())
    return PreparedArtifact(
        artifact_id=manifest.id,
        weights=artifact / manifest.weights.path,
        identity=manifest.weights.sha256,
        config=(artifact / "config.json").read_bytes(),
    )


@dataclasses.dataclass
class Answer:  # noqa: PLW1641  # it grows, so it has no hash
    """Ids that were chosen after a prompt, and the logits that each was chosen from."""

    ids: list[int] = dataclasses.field(default_factory=list)
    logits: list[Logits] = dataclasses.field(default_factory=list)

    def __eq__(self, other: object) -> bool:
        """Bit for bit."""
        return (
            isinstance(other, Answer)
            and self.ids == other.ids
            and np.stack(self.logits).tobytes() == np.stack(other.logits).tobytes()
        )


class Decoding:
    """A model on an arena of its own.

    Args:
        artifact: Its directory.
        made: What a loader made of it; None: its files as they lie there.
    """

    def __init__(
        self,
        artifact: Path,
        kernels: Kernels,
        dtype: DTypeChoice,
        *,
        arena_bytes: int = 64 << 20,
        max_model_len: int = 0,
        kv_dtype: KvChoice = "auto",
        made: PreparedArtifact | None = None,
    ) -> None:
        self.arena = Arena(arena_bytes)
        loading = ModelLoading(
            arena=self.arena,
            kernels=kernels,
            dtype=dtype,
            max_model_len=max_model_len,
            kv_dtype=kv_dtype,
        )
        self.model: ModelOnArena = loading.load(made or prepared(artifact))

    def together(self, prompts: Ordered[Prompt], new: int, *, chunk_tokens: int = 512) -> list[Answer]:
        """Answers all prompts in shared steps, each `new` tokens long."""
        return self._decode([(prompt, None) for prompt in prompts], new, chunk_tokens)

    def alone(self, prompts: Ordered[Prompt], new: int, *, chunk_tokens: int = 512) -> list[Answer]:
        """Answers one prompt after the other."""
        return [answer for p in prompts for answer in self._decode([(p, None)], new, chunk_tokens)]

    def forced(
        self, prompts: Ordered[Prompt], answers: Ordered[Prompt], *, chunk_tokens: int = 512
    ) -> list[Answer]:
        """Says, at every place of the given answers, what would have been chosen there."""
        return self._decode(list(zip(prompts, answers, strict=True)), len(answers[0]), chunk_tokens)

    def _decode(
        self, asked: Ordered[tuple[Prompt, Prompt | None]], new: int, chunk_tokens: int
    ) -> list[Answer]:
        sequences = {self._sequence(p, new): (given, Answer()) for p, given in asked}
        live = list(sequences)
        while live:
            shares = plan([Line(live)], chunk_tokens=chunk_tokens, max_batch=len(live))
            for share in shares:
                share.sequence.cover(share.tokens)
            rows = iter(self.model.forward(Ragged.of(shares)))
            due = [share.sequence for share in shares if share.sequence.advance(share.tokens)]
            for sequence, row in zip(due, rows, strict=True):
                given, answer = sequences[sequence]
                answer.ids.append(int(row.argmax()))
                answer.logits.append(row.copy())
                sequence.append(answer.ids[-1] if given is None else given[len(answer.ids) - 1])
            live = [sequence for sequence in live if sequence.generated < new]
        for sequence in sequences:
            assert sequence._reservation
            sequence._reservation.close()
        self.arena.pool.check()
        return [answer for _, answer in sequences.values()]

    def _sequence(self, prompt: Prompt, new: int) -> Sequence:
        asked = request(prompt=prompt, max_tokens=new)
        return Sequence(asked, self.arena.pool.reserve(self.model.block_bytes, asked.worst_case_blocks))
