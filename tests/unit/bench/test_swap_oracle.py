"""Answers compared with the pure runs of what they named."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest

from bench.ask import Ask, Mix, Size
from bench.swap_load import Answer, Load
from bench.swap_oracle import Oracle
from services.common.completion import Chunk, Provenance, Sampling
from services.common.errors import Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, RequestId, Revision

ASK = Ask((1, 2), 3)
A, B = ArtifactId("a" * 64), ArtifactId("b" * 64)
TOKENS = {A: (7, 8, 9), B: (7, 5, 9)}


class OneArtifact:
    """A client of a system that serves one artifact, or fails after its tokens."""

    def __init__(self) -> None:
        self.serves = A
        self.changes_to: ArtifactId | None = None
        self.error: Unavailable | None = None

    def generate(self, prompt: Sequence[int], **options: Any) -> OneArtifact:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        tokens = TOKENS[self.serves]
        yield chunk(self.serves, tokens[:1])
        if self.error:
            raise self.error
        yield chunk(self.changes_to or self.serves, tokens[1:])


def chunk(artifact_id: ArtifactId, tokens: tuple[int, ...]) -> Chunk:
    sampling = Sampling(
        temperature=0,
        top_k=0,
        top_p=1,
        seed=0,
        max_tokens=3,
        stop_token_ids=(),
        ignore_eos=True,
        logprobs=False,
    )
    provenance = Provenance(
        model=ModelName("m"),
        cohort=Cohort("stable"),
        artifact_id=artifact_id,
        revision=Revision(1),
        engine_id=ProcessId("e"),
        runtime_build="",
        sampling=sampling,
    )
    return Chunk(request_id=RequestId("r"), token_ids=tokens, provenance=provenance)


@pytest.fixture
def client() -> OneArtifact:
    return OneArtifact()


@pytest.fixture
async def load(client: OneArtifact) -> Load:
    return Load(client, [ASK], random.Random(1))  # type: ignore[arg-type]  # all of it that a load needs


@pytest.fixture
async def oracle(client: OneArtifact, load: Load) -> Oracle:
    oracle = Oracle(load, [ASK])
    for artifact_id in (A, B):
        client.serves = artifact_id
        await oracle.learn(artifact_id)
    return oracle


async def test_each_answer_is_compared_with_the_artifact_that_it_named(
    client: OneArtifact, load: Load, oracle: Oracle
) -> None:
    """Its own tokens are right, another artifact's are wrong, and so is what lacks.

    Fault injection: turns red when an answer is compared with whichever artifact fits it best.
    """
    answer = await load.ask(ASK)
    assert (True, 0) == (answer.is_sound, oracle.wrong_tokens(answer))
    assert 1 == oracle.wrong_tokens(Answer(ASK, 0.0, [A], list(TOKENS[B])))
    assert 1 == oracle.wrong_tokens(Answer(ASK, 0.0, [A], [7, 8]))
    assert 3 == oracle.wrong_tokens(Answer(ASK, 0.0, [], [7, 8, 9]))
    assert 0 == await oracle.differences(B)


async def test_an_answer_of_two_artifacts_and_one_that_was_cut_off_are_not_sound(
    client: OneArtifact, load: Load, oracle: Oracle
) -> None:
    """Of one that was cut off, what had come may still be right."""
    client.changes_to = A
    assert not (await load.ask(ASK)).is_sound
    client.error = Unavailable("gone")
    cut = await load.ask(ASK)
    assert (False, 0) == (cut.is_sound, oracle.wrong_tokens(cut))


async def test_a_quiet_run_that_another_artifact_answers_is_no_oracle(
    client: OneArtifact, oracle: Oracle
) -> None:
    """It would make every comparison wrong."""
    client.serves = A
    with pytest.raises(RuntimeError, match="not answered by bbbb"):
        await oracle.learn(B)


def test_of_ten_asks_seven_are_short_and_every_other_one_is_sampled() -> None:
    """The prompts are in the vocabulary, and all are different."""
    asks = Mix(100, Size(4, 2), Size(9, 5)).asks(random.Random(1), 20)
    assert 14 == sum(len(ask.prompt) == 4 and ask.tokens == 2 for ask in asks)
    assert 6 == sum(len(ask.prompt) == 9 and ask.tokens == 5 for ask in asks)
    assert 10 == sum(ask.seed is None for ask in asks)
    assert len(set(asks)) == 20
    assert all(0 <= token < 100 for ask in asks for token in ask.prompt)
