"""When a request entered each of its stages. Pure: time comes in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class StepTimes(NamedTuple):
    """When a step was computed, in nanoseconds of Unix time, and what came of it.

    Attributes:
        prompt_tokens: How many tokens of prompts were computed.
        is_stuck: Nothing could be computed, though requests are under way: they wait for memory.
    """

    begin_ns: int
    end_ns: int
    prompt_tokens: int = 0
    is_stuck: bool = False


class Stage(NamedTuple):
    """A stage: "queue" until its first step, "prefill" until its first token, "decode" until its end."""

    name: str
    begin_ns: int
    end_ns: int


class Timeline:
    """One request's times, in nanoseconds of Unix time.

    Args:
        begin_ns: When it was handed to the step loop.

    Attributes:
        has_token: Whether its first token is out.
    """

    def __init__(self, begin_ns: int) -> None:
        self._begins = [("queue", begin_ns)]
        self._end_ns: int | None = None
        self.has_token = False

    def start_prefill(self, step: StepTimes) -> None:
        self._begins.append(("prefill", step.begin_ns))

    def start_decode(self, step: StepTimes) -> None:
        self._begins.append(("decode", step.end_ns))
        self.has_token = True

    def end(self, step: StepTimes) -> None:
        self._end_ns = step.end_ns

    def stages(self, now_ns: int) -> Iterator[Stage]:
        """The stages that it has entered; the last one ends with the request or, while that goes on, at `now_ns`."""
        ends = [begin_ns for _, begin_ns in self._begins[1:]] + [self._end_ns or now_ns]
        for (name, begin_ns), end_ns in zip(self._begins, ends, strict=True):
            yield Stage(name, begin_ns, max(begin_ns, end_ns))
