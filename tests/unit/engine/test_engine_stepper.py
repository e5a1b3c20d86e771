"""The stepper: every job ends once, cancels and deadlines are seen at once, a failure stays where it is."""

from __future__ import annotations

import collections
import math

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from structlog.testing import capture_logs

from services.common.errors import Cancelled, DeadlinePassed, InternalError
from services.engine.block_pool import BlockPool
from services.engine.job import Job
from services.engine.ragged import Ragged
from services.engine.stepper import FinishReason, Outcome, Stepper, Update
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, job, request, run_to_end


def stepper(chunk_tokens: int = 512, max_batch: int = 64) -> Stepper:
    return Stepper(chunk_tokens=chunk_tokens, max_batch=max_batch)


def tokens(updates: list[Update], of: Job) -> list[int]:
    return [u.token for u in updates if u.job is of and u.token is not None]


def outcomes(updates: list[Update], of: Job) -> list[Outcome]:
    return [u.outcome for u in updates if u.job is of and u.outcome is not None]


def the_outcome(updates: list[Update], of: Job) -> Outcome:
    (outcome,) = outcomes(updates, of)
    return outcome


def test_a_request_runs_to_its_length() -> None:
    """A prefill, then one token per step, the first of them with the prefill."""
    model, steps = CountingModel(), stepper()
    asked = job(request(prompt=(1, 2, 3), max_tokens=4), model)
    steps.add(asked)
    updates = run_to_end(steps)
    assert [4, 5, 6, 7] == tokens(updates, asked)
    assert [FinishReason.LENGTH] == outcomes(updates, asked)
    assert [3, 1, 1, 1] == [len(step.token_ids) for step in model.steps]
    assert [True, False, False, False] == [u.is_first_chunk for u in updates]


def test_a_stop_token_ends_the_answer_and_is_part_of_it() -> None:
    """The token that ended the answer counts as generated."""
    steps = stepper()
    asked = job(request(prompt=(1,), max_tokens=9, stop_token_ids=frozenset({4})), CountingModel())
    steps.add(asked)
    updates = run_to_end(steps)
    assert [2, 3, 4] == tokens(updates, asked)
    assert [FinishReason.STOP] == outcomes(updates, asked)


def test_an_abort_is_seen_before_the_next_step_is_computed() -> None:
    """Not one more token is computed for it; the other request goes on."""
    model, steps = CountingModel(), stepper()
    left, stays = job(request("left", max_tokens=99), model), job(request("stays"), model)
    steps.add(left)
    steps.add(stays)
    list(steps.step(0.0))
    left.ending = Cancelled("the caller left")
    updates = list(steps.step(0.0))
    assert isinstance(the_outcome(updates, left), Cancelled)
    assert [] == tokens(updates, left)
    assert 1 == len(model.steps[1].token_ids)
    assert 1 == len(tokens(updates, stays))


def test_a_deadline_is_seen_before_the_next_step_is_computed() -> None:
    """Expired work is never started, and running work ends."""
    model, steps = CountingModel(), stepper()
    asked = job(request(max_tokens=99, deadline=10.0), model)
    steps.add(asked)
    assert [] == outcomes(list(steps.step(9.9)), asked)
    assert isinstance(the_outcome(list(steps.step(10.0)), asked), DeadlinePassed)
    assert 1 == len(model.steps)


def test_s_d7_a_failing_step_ends_its_requests_with_an_error_and_the_engine_goes_on() -> None:
    """S-D7: what came before the failure stands, then INTERNAL, never a finish reason; the next request works.

    Turns red when: Stepper._compute ends the jobs with FinishReason.LENGTH in place of `failure`.
    """

    def fail_at_2(step: int) -> None:
        if step == 2:
            raise RuntimeError("injected")

    model, steps = CountingModel(fail_at_2), stepper()
    asked = job(request(prompt=(1,), max_tokens=9), model)
    steps.add(asked)
    updates = [update for _ in range(3) for update in steps.step(0.0)]
    assert [2, 3] == tokens(updates, asked)
    outcome = the_outcome(updates, asked)
    assert isinstance(outcome, InternalError)
    assert "injected" not in outcome.message

    model._before = lambda _step: None
    later = job(request(prompt=(1,), max_tokens=2), model)
    steps.add(later)
    assert [FinishReason.LENGTH] == outcomes(run_to_end(steps), later)


def test_a_failing_model_harms_no_request_of_another() -> None:
    """Two generations share a step; only the broken one's requests end."""

    def fail(_step: int) -> None:
        raise RuntimeError("injected")

    steps = stepper()
    broken, sound = job(request("a"), CountingModel(fail)), job(request("b"), CountingModel())
    steps.add(broken)
    steps.add(sound)
    updates = run_to_end(steps)
    assert isinstance(the_outcome(updates, broken), InternalError)
    assert [FinishReason.LENGTH] == outcomes(updates, sound)


def test_numbers_that_break_down_end_one_request_only() -> None:
    """NaN in one row of logits ends that row's request; its neighbour in the batch goes on."""

    def spoil(step: Ragged, logits: npt.NDArray[np.float32]) -> None:
        logits[step.token_ids[step.sample_rows] == 30] = np.nan

    model, steps = CountingModel(spoil=spoil), stepper()
    bad, good = job(request("bad", prompt=(28,)), model), job(request("good", prompt=(1,)), model)
    steps.add(bad)
    steps.add(good)
    updates = run_to_end(steps)
    assert [29, 30] == tokens(updates, bad)
    assert isinstance(the_outcome(updates, bad), InternalError)
    assert [2, 3, 4, 5] == tokens(updates, good)


def test_s_g1_a_choice_that_fails_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever breaks in the sampling of one row, the others of its step go on, and so does the engine.

    Fault injection: turns red when sampling._try lets what _choose raises pass.
    """
    steps, model = stepper(), CountingModel()
    monkeypatch.setattr("services.engine.sampling.uniform", lambda _seed, _position: 1 / 0)
    bad, good = (
        job(request("bad", prompt=(1,), temperature=1.0), model),
        job(request("good", prompt=(1,)), model),
    )
    steps.add(bad)
    steps.add(good)
    with capture_logs():
        updates = run_to_end(steps)
    assert isinstance(the_outcome(updates, bad), InternalError)
    assert [] == tokens(updates, bad)
    assert [2, 3, 4, 5] == tokens(updates, good)
    assert [FinishReason.LENGTH] == outcomes(updates, good)


def test_every_token_has_the_logprob_of_its_own_step() -> None:
    """Where they are asked for; a neighbour that asked for none gets none."""
    steps, model = stepper(), CountingModel()
    asks, asks_not = (
        job(request("a", prompt=(1, 2), logprobs=True), model),
        job(request("b", prompt=(9,)), model),
    )
    for each in (asks, asks_not):
        steps.add(each)
    updates = run_to_end(steps)
    of_the_greatest = -math.log(1 + 63 * math.exp(-1))
    assert [pytest.approx(of_the_greatest)] * 4 == [u.logprob for u in updates if u.job is asks]
    assert {None} == {u.logprob for u in updates if u.job is asks_not}


def test_a_fault_outside_any_model_ends_all_and_leaves_the_stepper_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever breaks, nobody waits for ever."""
    steps = stepper()
    asked = job(request(), CountingModel())
    steps.add(asked)
    monkeypatch.setattr("services.engine.stepper.plan", lambda *_args, **_kwargs: 1 / 0)
    assert isinstance(the_outcome(list(steps.step(0.0)), asked), InternalError)
    assert steps.is_idle


def test_a_1500_token_prompt_delays_a_running_stream_by_one_chunk_per_step() -> None:
    """The stream gets a token in every one of the three steps that the prompt takes."""
    model, steps = CountingModel(), stepper(chunk_tokens=512)
    stream = job(request("stream", prompt=(1,), max_tokens=50), model)
    steps.add(stream)
    list(steps.step(0.0))
    long = job(request("long", prompt=[5] * 1500, max_tokens=1), model)
    steps.add(long)
    per_step = [list(steps.step(0.0)) for _ in range(3)]
    assert [1, 1, 1] == [len(tokens(updates, stream)) for updates in per_step]
    assert [513, 513, 477] == [len(step.token_ids) for step in model.steps[1:]]
    assert [FinishReason.LENGTH] == outcomes(per_step[2], long)


def test_two_models_take_turns_and_one_that_has_nothing_left_is_let_go() -> None:
    """Many prompts for one model do not put off the first token of another's; no model is kept after its last job.

    Fault injection: turns red when Stepper._let_go keeps empty lines.
    """
    busy, calm, steps = CountingModel(), CountingModel(), stepper(chunk_tokens=32)
    for i in range(20):
        steps.add(job(request(f"busy-{i}", prompt=[1] * 30, max_tokens=1), busy))
    late = job(request("calm", prompt=[1] * 16, max_tokens=1), calm)
    steps.add(late)
    assert [2] == tokens(list(steps.step(0.0)), late)
    assert [16] == [len(step.token_ids) for step in calm.steps]
    run_to_end(steps)
    assert {} == steps._lines


Asked = tuple[int, int, int | None, float]  # prompt, max_tokens, step of abort, deadline


@given(
    st.lists(
        st.tuples(
            st.integers(1, 70),
            st.integers(1, 12),
            st.none() | st.integers(0, 8),
            st.sampled_from([float("inf"), 0.0, 2.0, 5.0]),
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 40),
    st.integers(1, 6),
    st.none() | st.integers(0, 6),
)
@settings(deadline=None, max_examples=150)
def test_every_request_ends_exactly_once_and_gives_back_its_blocks(
    asked: list[Asked], chunk_tokens: int, max_batch: int, fail_at: int | None
) -> None:
    """Any mix of lengths, aborts, deadlines and one failing step: one outcome each, no token after it."""

    def fail(step: int) -> None:
        if step == fail_at:
            raise RuntimeError("injected")

    pool = BlockPool(BLOCK_BYTES * 64)
    model, steps = CountingModel(fail), stepper(chunk_tokens, max_batch)
    jobs = [
        job(request(str(i), prompt=[i] * prompt, max_tokens=new, deadline=deadline), model, pool)
        for i, (prompt, new, _, deadline) in enumerate(asked)
    ]
    for each in jobs:
        steps.add(each)
    seen: dict[Job, list[Update]] = collections.defaultdict(list)
    now = 0
    while not steps.is_idle:
        for each, (_, _, abort_at, _) in zip(jobs, asked, strict=True):
            each.ending = each.ending or (Cancelled("the caller left") if abort_at == now else None)
        with capture_logs():
            updates = list(steps.step(float(now)))
        for update in updates:
            seen[update.job].append(update)
            if update.outcome is not None:
                assert update.job.sequence._reservation
                update.job.sequence._reservation.close()
        pool.check()
        now += 1
    for each, (_, new, _, _) in zip(jobs, asked, strict=True):
        assert [False] * (len(seen[each]) - 1) + [True] == [u.outcome is not None for u in seen[each]]
        assert len(tokens(seen[each], each)) <= new
    assert 0 == pool.used_bytes
