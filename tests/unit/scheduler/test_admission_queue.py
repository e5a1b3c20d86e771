"""The queue: for each artifact in order of arrival, but that small ones pass large ones; bounded twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.scheduler.admission_queue import AdmissionQueue
from services.scheduler.request import TicketRequest
from tests.unit.scheduler.builders import ARTIFACT, OTHER, request


def test_it_is_bounded_by_requests() -> None:
    """A queue of two takes no third, until one has left."""
    queue = AdmissionQueue(max_requests=2, max_prompt_tokens=1000)
    first, second = request(), request()
    queue.push(first, first.prompt_tokens)
    queue.push(second, second.prompt_tokens)
    assert not queue.can_push(1)
    queue.remove(first)
    assert queue.can_push(1)


def test_it_is_bounded_by_prompt_tokens() -> None:
    """Prompt tokens count, not requests alone."""
    queue = AdmissionQueue(max_requests=100, max_prompt_tokens=100)
    queue.push(request(60), 60)
    assert queue.can_push(40)
    assert not queue.can_push(41)


def test_a_lone_request_may_be_longer_than_the_bound() -> None:
    """Otherwise a prompt longer than the bound could never wait at all."""
    queue = AdmissionQueue(max_requests=1, max_prompt_tokens=100)
    assert queue.can_push(1000)


def test_a_queue_of_no_requests_takes_none() -> None:
    """Zero means that nobody waits."""
    assert not AdmissionQueue(max_requests=0, max_prompt_tokens=100).can_push(1)


def test_candidates_come_by_arrival_whatever_artifact_they_are_for() -> None:
    """Of each artifact the earliest, and whoever may pass all before it.

    Fault injection: turns red when `candidates` takes one line after the other.
    """
    queue = AdmissionQueue(max_requests=10, max_prompt_tokens=1000)
    requests = [
        request(size, artifact=artifact)
        for size, artifact in ((50, ARTIFACT), (60, ARTIFACT), (70, OTHER), (20, ARTIFACT))
    ]
    for each in requests:
        queue.push(each, each.prompt_tokens)
    assert [requests[0], requests[2], requests[3]] == list(queue.candidates())
    assert queue.may_pass(request(19), 19)
    assert not queue.may_pass(request(20), 20)
    assert queue.may_pass(request(69, artifact=OTHER), 69)


class QueueBesideList(RuleBasedStateMachine):
    """The queue behaves as a plain list with two bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = AdmissionQueue(max_requests=5, max_prompt_tokens=100)
        self.model: list[TicketRequest] = []

    @rule(prompt_tokens=st.integers(1, 60), artifact=st.sampled_from([ARTIFACT, OTHER]))
    def push(self, prompt_tokens: int, artifact: str) -> None:
        wanted = request(prompt_tokens, artifact=ARTIFACT if artifact == ARTIFACT else OTHER)
        total = sum(each.prompt_tokens for each in self.model) + prompt_tokens
        room = len(self.model) < 5 and (total <= 100 or not self.model)
        assert room == self.queue.can_push(prompt_tokens)
        if room:
            self.queue.push(wanted, wanted.prompt_tokens)
            self.model.append(wanted)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        gone = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
        assert self.queue.remove(gone)
        assert not self.queue.remove(gone)

    @precondition(lambda self: self.model)
    @rule()
    def take_the_head(self) -> None:
        head = next(self.queue.candidates())
        assert self.model.pop(0) is head
        self.queue.serve(head)

    @invariant()
    def is_conserved(self) -> None:
        self.queue.check()
        assert len(self.model) == len(self.queue)
        assert set(self.model) == set(self.queue)
        for artifact in (ARTIFACT, OTHER):
            assert any(each.artifact_id == artifact for each in self.model) == self.queue.is_waited_for(
                artifact
            )


QueueBesideList.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestQueueBesideList = QueueBesideList.TestCase
