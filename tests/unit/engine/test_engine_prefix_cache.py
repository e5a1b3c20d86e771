"""Keys and values of earlier prompts: found where they are the same, bit for bit, and nowhere else; in nobody's way."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from services.common.errors import HalogenError
from services.common.registry.records import GenerationState as State
from services.engine.arena import Arena
from services.engine.engine import Engine
from services.engine.kernels.protocol import Kernels
from services.engine.lender import LoadedModel
from services.engine.loaded_model import ModelLoading, ModelOnArena
from services.engine.prefix_key import PAGE_TOKENS
from services.engine.ragged import Ragged
from tests.tiny_checkpoints import TinyShape, make_tiny_artifact
from tests.unit.engine.decoding import prepared
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request
from tests.unit.engine.generation_world import NEW, OLD, world
from tests.unit.engine.reading_model import Memory, ReadingModel

LONG = 800  # tokens


class Told(NamedTuple):
    tokens: list[int]
    cached_tokens: int


def engine(blocks: int = 64, *, prefix_cache: bool = True) -> Engine:
    arena = Arena(blocks * BLOCK_BYTES)
    return Engine(arena, chunk_tokens=64, max_batch=8, check_every_step=True, prefix_cache=prefix_cache)


async def ask(
    running: Engine,
    model: LoadedModel,
    prompt: Iterable[int],
    max_tokens: int = 4,
    *,
    salt: bytes | None = b"",
    name: str = "r",
) -> Told:
    asked = request(name, prompt, max_tokens, cache_salt=salt)
    async with running.run(generation(model), asked) as stream:
        return Told([token async for piece in stream for token in piece.token_ids], stream.cached_tokens)


async def test_what_was_computed_is_not_computed_again() -> None:
    """A prompt of 40 tokens again: its first two pages are there, and 8 tokens are computed; the answer is the same."""
    model = CountingModel()
    async with engine() as running:
        cold, warm = [await ask(running, model, range(40)) for _ in range(2)]
    assert (Told([40, 41, 42, 43], 0), Told([40, 41, 42, 43], 32)) == (cold, warm)
    assert [40, 1, 1, 1, 8, 1, 1, 1] == [len(step.token_ids) for step in model.steps]
    assert (80, 32) == (running.prefixes.asked_tokens, running.prefixes.found_tokens)


async def test_of_every_prompt_one_token_at_least_is_computed() -> None:
    """Two whole pages again: the second is computed once more, for its last token's logits are wanted."""
    async with engine() as running:
        told = [await ask(running, CountingModel(), range(32)) for _ in range(2)]
    assert [0, 16] == [each.cached_tokens for each in told]


async def test_a_conversation_goes_on_from_its_last_answer() -> None:
    """The pages of an answer are found by the prompt that repeats it, also when it was broken off."""
    memory: Memory = {}
    model = ReadingModel(3, memory)
    async with engine() as running:
        first = await ask(running, model, range(20), 30)
        again = [*range(20), *first.tokens, 5, 6]
        assert Told(model.answer(again, 3), 48) == await ask(running, model, again, 3)
        seen: list[int] = []
        async with running.run(generation(model), request("left", again, 60, cache_salt=b"")) as stream:
            while len(seen) < 20:
                seen += (await anext(stream)).token_ids
        await ask(running, model, [1], 1, salt=None)  # by now what was broken off has ended
        longer = [*again, *seen[:20], 7]
        assert Told(model.answer(longer, 3), 64) == await ask(running, model, longer, 3)


async def test_the_last_token_of_an_answer_is_not_there_yet() -> None:
    """An answer of 12 after a prompt of 20 fills two pages, but for its last token, which was never fed back.

    Fault injection: turns red when engine._keep takes the tokens that are known (up to `length`) for stored ones.
    """
    model = ReadingModel(3, {})
    async with engine() as running:
        first = await ask(running, model, range(20), 12)
        again = [*range(20), *first.tokens, 5]
        assert Told(model.answer(again, 3), 16) == await ask(running, model, again, 3)


async def test_a_running_requests_prompt_serves_others_at_once() -> None:
    """Its pages are shared as soon as its first token is out, and each is counted once."""
    gate = Gate()
    model = CountingModel(gate)
    async with engine() as running:
        asked = request("first", range(40), 20, cache_salt=b"")
        async with running.run(generation(model), asked) as stream:
            gate.open()
            await anext(stream)
            used_bytes = running.arena.pool.used_bytes
            second = request("second", range(40), 20, cache_salt=b"")
            async with running.run(generation(model), second) as other:
                assert 32 == other.cached_tokens
                assert used_bytes + 2 * BLOCK_BYTES == running.arena.pool.used_bytes
                gate.open(100)
                async for _ in other:
                    pass
            async for _ in stream:
                pass
        assert 0 == running.arena.pool.used_bytes < running.arena.pool.reclaimable_bytes


# Fault injection: turns red when Prefix.__exit__ unpins nothing, or PrefixCache knows all pages by one origin.
async def test_answers_are_right_and_nobody_is_refused_however_full_the_arena_is() -> None:
    """400 requests of two models that share beginnings, half of them broken off, on an arena that holds a few.

    The model answers by what it finds stored: one page too many, too early given away or of another model shows.
    """
    memory: Memory = {}
    models = [ReadingModel(weight, memory) for weight in (3, 5)]
    chance, places = random.Random(16), asyncio.Semaphore(4)
    beginnings = [[chance.randrange(64) for _ in range(48)] for _ in range(3)]

    async def one(running: Engine, number: int) -> int:
        model, salt = chance.choice(models), chance.choice([b"", b"", b"tenant", None])
        prompt = chance.choice(beginnings)[: chance.randrange(49)] + [
            chance.randrange(64) for _ in range(chance.randrange(1, 14))
        ]
        tokens, leaves = chance.randrange(1, 19), chance.random() < 0.5
        expected, said = model.answer(prompt, tokens), list[int]()
        async with places:
            asked = request(str(number), prompt, tokens, cache_salt=salt)
            async with running.run(generation(model), asked) as stream:
                async for piece in stream:
                    said += piece.token_ids
                    if leaves:
                        break
        assert said == expected[: len(said)]
        assert leaves or len(said) == tokens
        return stream.cached_tokens

    async with engine(blocks=40) as running:
        found = await asyncio.gather(*(one(running, number) for number in range(400)))
        assert Told(models[0].answer([1], 1), 0) == await ask(running, models[0], [1], 1, salt=None)
        running.check()
        assert 0 == running.arena.pool.used_bytes
    assert sum(count > 0 for count in found) > 50
    assert sum(found) == running.prefixes.found_tokens


# Fault injection: turns red when Prefix.add keeps a page that is not whole.
async def test_no_step_writes_into_a_page() -> None:
    """Copying on write is never due: only whole pages are shared, the last token of a prompt is always computed anew,
    and what a request writes are blocks of its own reservation, whatever others share with it."""
    chance, places = random.Random(61), asyncio.Semaphore(6)
    beginning, model = [chance.randrange(64) for _ in range(96)], CountingModel()
    async with engine(blocks=60) as running:
        pool, forward = running.arena.pool, model.forward

        def watched(step: Ragged) -> npt.NDArray[np.float32]:
            written = step.tables[
                np.repeat(np.arange(len(step.rows) - 1), np.diff(step.rows)), step.positions // 16
            ]
            slots = [*zip(written.tolist(), (step.positions % 16).tolist(), strict=True)]
            assert len(set(slots)) == len(slots), "two tokens in one place"
            with pool.lock:
                pages = {page.block for page in (*pool._in_use, *pool._unused)}
            assert set() == pages.intersection(written.tolist())
            return forward(step)

        model.forward = watched  # type: ignore[method-assign]

        async def one(number: int) -> int:
            prompt = [*beginning[: chance.randrange(97)], *([7] * chance.randrange(3))] or [1]
            async with places:
                return (
                    await ask(running, model, prompt, chance.randrange(1, 40), name=str(number))
                ).cached_tokens

        found = await asyncio.gather(*(one(number) for number in range(200)))
    assert sum(count > 0 for count in found) > 50


async def test_pages_are_shared_under_one_salt_alone() -> None:
    """Another salt, or none, finds nothing, and leaves nothing for others.

    Fault injection: turns red when `root` leaves out the salt.
    """
    model = CountingModel()
    async with engine() as running:
        told = [
            await ask(running, model, range(40), salt=salt) for salt in (None, b"a", b"b", b"a", None, b"")
        ]
    assert [0, 0, 0, 32, 0, 0] == [each.cached_tokens for each in told]


async def test_an_engine_that_keeps_nothing_finds_nothing() -> None:
    """As `prefix_cache: false` has it."""
    async with engine(prefix_cache=False) as running:
        told = [await ask(running, CountingModel(), range(40)) for _ in range(2)]
        assert 0 == running.arena.pool.reclaimable_bytes
    assert [0, 0] == [each.cached_tokens for each in told]


async def test_a_request_whose_step_failed_leaves_nothing() -> None:
    """What was stored by a step that broke is not to be trusted.

    Fault injection: turns red when Engine._tell keeps the pages of every outcome.
    """

    faults = [RuntimeError("injected")]

    def fail(step: int) -> None:
        if step == 1 and faults:
            raise faults.pop()

    model = CountingModel(fail)
    async with engine() as running:
        with pytest.raises(HalogenError):
            await ask(running, model, range(100))  # its second chunk
        assert 0 == (await ask(running, model, range(100), name="next")).cached_tokens


async def test_of_a_model_that_has_retired_nothing_is_found() -> None:
    """Loaded again it begins anew; all that was kept is free, also beyond one slice, also what somebody took meanwhile.

    Fault injection: turns red when PrefixCache.forget does nothing, or frees the first slice only.
    """
    model = CountingModel()
    async with engine(blocks=400) as running:
        for first in range(64):
            await ask(running, model, [first] * 80, 1)
        assert 64 * 5 * BLOCK_BYTES == running.arena.pool.reclaimable_bytes
        slices = running.prefixes.forget(model.origin)
        next(slices)
        with running.arena.pool.reserve(BLOCK_BYTES, 400 - 10):
            assert [None] == list(slices)
        assert 0 == running.arena.pool.reclaimable_bytes
        assert 0 == (await ask(running, model, [0] * 80)).cached_tokens
        await running.forget(model)
        assert 400 * BLOCK_BYTES == running.arena.pool.free_bytes
        running.check()


async def test_memory_stays_level_over_any_number_of_swaps() -> None:
    """Each generation writes where the last but one wrote: the arena's pages that were ever written are those of two.

    Fault injection: turns red when PrefixCache.forget does nothing.
    """
    memory: Memory = {}
    async with engine(blocks=400) as running:
        models = [ReadingModel(weight, memory) for weight in range(1, 21)]
        touched: list[int] = []
        for old, new in itertools.pairwise(models):
            for first in range(5):
                await ask(running, new, [first] * 40)
            await running.forget(old)
            touched.append(len({block for block, _ in memory}))
    assert [touched[1]] * 18 == touched[1:]


async def test_a_generation_that_retires_leaves_no_pages() -> None:
    """They are free before its model is let go.

    Fault injection: turns red when GenerationManager._act leaves out Engine.forget.
    """
    gone = threading.Event()

    def build() -> CountingModel:
        model = CountingModel()
        weakref.finalize(model, gone.set)
        return model

    async with world() as it:
        it.building[OLD] = build
        await it.serve(OLD, await it.target(OLD))
        await it.until(lambda states: states == {OLD: State.ACTIVE})
        async with it.run(OLD, request(prompt=range(40), cache_salt=b"")) as stream:
            async for _ in stream:
                pass
        assert 2 * BLOCK_BYTES == it.engine.arena.pool.reclaimable_bytes
        await it.serve(NEW, await it.target(NEW))
        assert await asyncio.to_thread(gone.wait, 10)
        assert 0 == it.engine.arena.pool.reclaimable_bytes


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two artifacts of one graph with other weights, for 1,024 tokens."""
    shape, root = TinyShape(max_position_embeddings=1024), tmp_path_factory.mktemp("perturbed")
    return [make_tiny_artifact(root / f"{seed}", shape, seed=seed)[0] for seed in (1, 2)]


class Recording:
    """A model, and the logits that it has given."""

    def __init__(self, model: ModelOnArena, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = model
        self.logits: list[npt.NDArray[np.float32]] = []
        forward = model.forward

        def recorded(step: Ragged) -> npt.NDArray[np.float32]:
            self.logits.append(forward(step).copy())
            return self.logits[-1]

        monkeypatch.setattr(model, "forward", recorded)

    async def ask(self, running: Engine, prompt: list[int], salt: bytes = b"") -> tuple[Told, bytes]:
        """The answer, and the bits of the logits that its tokens were chosen from."""
        self.logits.clear()
        told = await ask(running, self.model, prompt, 12, salt=salt)
        return told, b"".join(each.tobytes() for each in self.logits if len(each))


async def test_r_a16_s_c1_a_prompt_that_is_warm_on_the_old_weights_is_cold_on_the_new(
    perturbed: list[Path], kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-A16, S-C1, S-D11: 800 tokens warm on v1, then on v2: nothing is found and every bit is as cold; so back on v1.

    Fault injection: turns red when ModelOnArena.origin leaves out the artifact.
    """
    arena = Arena(64 << 20)
    loading = ModelLoading(arena=arena, kernels=kernels, dtype="auto", max_model_len=0)
    prompt = np.random.default_rng(16).integers(1, 500, LONG).tolist()
    async with Engine(arena, chunk_tokens=256, max_batch=8, check_every_step=True) as running:
        old, new = (Recording(loading.load(prepared(path)), monkeypatch) for path in perturbed)
        cold_old, cold_new = [await each.ask(running, prompt, salt=b"cold") for each in (old, new)]
        first, warm = [await old.ask(running, prompt) for _ in range(2)]
        swapped, back = await new.ask(running, prompt), await old.ask(running, prompt)
    found = LONG - PAGE_TOKENS
    assert [0, found, 0, found] == [told.cached_tokens for told, _ in (first, warm, swapped, back)]
    assert cold_new == swapped
    assert cold_old[0].tokens == warm[0].tokens == back[0].tokens
    assert cold_old[1] == warm[1] == back[1]
    assert cold_old[1] != cold_new[1]
