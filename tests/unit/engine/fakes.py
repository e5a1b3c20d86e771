"""Stand-ins for the engine's tests: a model whose answer is known beforehand, and what drives it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from services.common.checkpoint.graph_hash import Built
from services.common.ids import ArtifactId, RequestId
from services.common.registry.records import GenerationState
from services.engine.block_pool import BlockPool
from services.engine.generation import Generation
from services.engine.job import Job, StepModel
from services.engine.lender import LoadedModel
from services.engine.prefix_key import Origin
from services.engine.ragged import Ragged
from services.engine.sequence import Sampling, Sequence, TokenRequest
from services.engine.stepper import Stepper, Update

VOCABULARY = 64
BLOCK_BYTES = 64


class CountingModel:
    """Answers every token with its successor, so that prompt [.., 7] gives 8, 9, 10, ...

    Args:
        before: Called with the number of the step, from 0, before it is computed; may raise or wait.
        spoil: May change the logits of a step.
    """

    vocab_size = VOCABULARY
    block_bytes = BLOCK_BYTES
    max_context_tokens = 4096
    weights_bytes = 0
    built: Built | None = None
    origin = Origin("a" * 64, "", "float32")

    def __init__(
        self,
        before: Callable[[int], None] = lambda _step: None,
        spoil: Callable[[Ragged, npt.NDArray[np.float32]], None] = lambda _step, _logits: None,
    ) -> None:
        self.steps: list[Ragged] = []
        self._before = before
        self._spoil = spoil

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        self._before(len(self.steps))
        self.steps.append(step)
        following = (step.token_ids[step.sample_rows] + 1) % VOCABULARY
        logits = np.zeros((len(following), VOCABULARY), np.float32)
        logits[np.arange(len(following)), following] = 1
        self._spoil(step, logits)
        return logits

    def read_blocks(self, blocks: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        return np.zeros((len(blocks), self.block_bytes), np.uint8)

    def write_blocks(self, blocks: npt.NDArray[np.int32], content: npt.NDArray[np.uint8]) -> None:
        assert content.shape == (len(blocks), self.block_bytes)


class Gate:
    """Lets a model's steps pass one by one, as the test says."""

    def __init__(self) -> None:
        self._open = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)

    def __call__(self, _step: int) -> None:
        self.reached.release()
        assert self._open.acquire(timeout=10)

    def open(self, steps: int = 1) -> None:
        self._open.release(steps)


def request(
    name: str = "r", prompt: Iterable[int] = (1, 2, 3), max_tokens: int = 4, **changes: object
) -> TokenRequest:
    fields = {field: changes.pop(field) for field in ("deadline", "cache_salt", "tenant") if field in changes}
    sampling = Sampling(max_tokens=max_tokens, **changes)  # type: ignore[arg-type]
    return TokenRequest(id=RequestId(name), prompt=tuple(prompt), sampling=sampling, **fields)  # type: ignore[arg-type]


def job(asked: TokenRequest, model: StepModel, pool: BlockPool | None = None) -> Job:
    pool = pool or BlockPool(BLOCK_BYTES * 1024)
    return Job(Sequence(asked, pool.reserve(BLOCK_BYTES, asked.worst_case_blocks)), model)


def run_to_end(stepper: Stepper, now: float = 0.0) -> list[Update]:
    updates: list[Update] = []
    while not stepper.is_idle:
        updates += stepper.step(now)
    return updates


def generation(model: LoadedModel, artifact: str = "a" * 64) -> Generation:
    """An ACTIVE generation of a model."""
    made = warming_generation(model, artifact)
    made.advance(GenerationState.ACTIVE)
    return made


def warming_generation(model: LoadedModel, artifact: str = "a" * 64) -> Generation:
    """One that has its model and serves nobody yet."""
    made = Generation(ArtifactId(artifact), lambda: None)
    for state in (GenerationState.VERIFYING, GenerationState.ALLOCATING, GenerationState.WARMING):
        made.advance(state)
    made.install(model)
    return made
