"""Warm-ups: whatever a step gives that none may is found before anybody's request meets it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import numpy as np
import numpy.typing as npt
import pytest

from services.common.errors import CorruptData, Overloaded, PreconditionFailed
from services.common.text.representative_prompts import RepresentativePrompt
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.ragged import Ragged
from services.engine.warm_up import warm_up
from tests.unit.engine.fakes import BLOCK_BYTES, VOCABULARY, CountingModel, request, warming_generation

BLOCKS = 4096
PROMPTS = (
    RepresentativePrompt(1, (5, 6)),
    RepresentativePrompt(2, tuple(range(40)), expected_token_ids=(40, 41)),
)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine(
        Arena(BLOCK_BYTES * BLOCKS), chunk_tokens=16, max_batch=8, check_every_step=True
    ) as running:
        yield running


def prompt_tokens(model: CountingModel) -> set[int]:
    return {token for step in model.steps for token in step.token_ids.tolist()}


async def test_requests_and_shapes_go_the_whole_way(engine: Engine) -> None:
    """Every representative request, batches of rows and a whole chunk are computed, and nothing is left of them."""

    def until_all_are_there(_step: int) -> None:
        while 1 + len(PROMPTS) < engine.accepted < 1 + len(PROMPTS) + 8:
            time.sleep(0)  # a stand-in is done with one row before the next one comes

    model = CountingModel(until_all_are_there)
    await warm_up(engine, warming_generation(model), PROMPTS)
    assert set(range(41)) <= prompt_tokens(model)
    assert 8 in {len(step.sample_rows) for step in model.steps}, "eight rows were decoded together"
    assert 16 in {len(step.token_ids) for step in model.steps}, "a whole chunk was computed"
    assert not engine.is_busy


async def test_a_warm_up_takes_no_memory_that_may_be_promised() -> None:
    """Of a small arena: shapes are left out, and the artifact's own requests come one after the other.

    Fault injection: turns red when `_WarmUp._fits_beside` says yes to every round.
    """
    model, few = CountingModel(), Arena(BLOCK_BYTES * 32)
    async with Engine(few, chunk_tokens=64, max_batch=8, check_every_step=True) as engine:
        await warm_up(engine, warming_generation(model), PROMPTS)
    assert set(range(41)) <= prompt_tokens(model)
    assert {1} == {len(step.rows) - 1 for step in model.steps}
    assert 1 + len(PROMPTS) == engine.accepted


class Crooked(CountingModel):
    """Gives logits of another form.

    Args:
        bend: What becomes of them.
    """

    def __init__(self, bend: str) -> None:
        super().__init__()
        self._bend = bend

    def forward(self, step: Ragged) -> npt.NDArray[np.float32]:
        logits = super().forward(step)
        bent: dict[str, npt.NDArray[np.float32]] = {
            "rows": np.concatenate((logits, logits)),
            "vocabulary": np.pad(logits, ((0, 0), (0, 8)), constant_values=2),
            "dtype": logits.astype(np.float64),
        }
        return bent[self._bend]


@pytest.mark.parametrize("bend", ["rows", "vocabulary", "dtype"])
async def test_logits_of_another_form_are_named(engine: Engine, bend: str) -> None:
    """Shape and dtype are held against the model's vocabulary and the rows that were asked for.

    Fault injection: turns red when WarmModel.forward does not compare the one that is bent.
    """
    with pytest.raises(
        PreconditionFailed, match=rf"logits are float.*, not float32 \[1, {VOCABULARY}\]"
    ) as refusal:
        await warm_up(engine, warming_generation(Crooked(bend)))
    assert "OUTPUT_CONTRACT" == refusal.value.reason


async def test_one_row_that_is_not_finite_is_enough(engine: Engine) -> None:
    """Also where only a longer prompt shows it.

    Fault injection: turns red when the artifact's own requests are left out.
    """

    def spoil(step: Ragged, logits: npt.NDArray[np.float32]) -> None:
        if 39 in step.token_ids:
            logits[-1, 3] = np.inf

    with pytest.raises(CorruptData, match="logits that are not finite in its warm-up"):
        await warm_up(engine, warming_generation(CountingModel(spoil=spoil)), PROMPTS)


async def test_an_answer_that_is_not_the_expected_one_fails_the_probe(engine: Engine) -> None:
    """The refusal names the request, what came and what was expected.

    Fault injection: turns red when _WarmUp._check does not compare the answer.
    """
    prompts = (PROMPTS[0], RepresentativePrompt(7, (1, 2), expected_token_ids=(3, 5)))
    with pytest.raises(
        PreconditionFailed, match=r"request 7 with tokens \[3, 4\], .* says \[3, 5\]"
    ) as refusal:
        await warm_up(engine, warming_generation(CountingModel()), prompts)
    assert "PROBE_MISMATCH" == refusal.value.reason


async def test_shapes_are_left_out_where_the_arena_is_full_and_requests_are_not(engine: Engine) -> None:
    """An artifact's own requests come one by one then, and fail as any request does where even that finds no room."""
    held, model = warming_generation(CountingModel()), CountingModel()
    async with engine.run(held, request(prompt=(1,) * 16, max_tokens=16 * (BLOCKS - 4))):
        await warm_up(engine, warming_generation(model), PROMPTS)
        assert set(range(41)) <= prompt_tokens(model)
        assert 8 not in {len(step.sample_rows) for step in model.steps}
        prompts = (RepresentativePrompt(1, (1,) * 100),)
        with pytest.raises(Overloaded):
            await warm_up(engine, warming_generation(model), prompts)
