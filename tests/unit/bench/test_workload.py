"""What is asked for, and what its times come to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.program import REPOSITORY
from bench.workload import LONG, SHORT, WORKLOADS, Timing


def test_everybody_is_asked_for_the_same() -> None:
    """The same seed gives the same requests, another seed others of the same sizes."""
    mix = WORKLOADS["mix32"]
    assert mix.asks(1, 500) == mix.asks(1, 500) != mix.asks(2, 500)
    lengths = sorted((len(ask.prompt), ask.tokens) for ask in mix.asks(1, 500))
    assert sorted([LONG] * 10 + [SHORT] * 22) == lengths


def test_a_peers_environment_needs_nothing_to_make_them() -> None:
    """The module is read by interpreters that have none of our packages.

    Fault injection: turns red when bench/ask.py or bench/workload.py imports numpy.
    """
    code = "import sys, bench.workload as w; print(len(w.WORKLOADS['mix8'].asks(1, 9))); print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    count, modules = run.stdout.splitlines()
    assert "8" == count
    assert not {"numpy", "torch"} & set(modules.split())


def test_a_rate_is_of_what_the_workload_measures() -> None:
    """Tokens after the first, the prompt until the first, or everything until the last.

    Fault injection: turns red when the first token counts as a step of its own.
    """
    assert 32.0 == WORKLOADS["decode128"].rate([Timing(1.0, 3.0, 65)])
    assert 256.0 == WORKLOADS["prefill512"].rate([Timing(2.0, 2.0, 1)])
    assert 64.0 == WORKLOADS["single"].rate([Timing(1.0, 2.0, 128)])


def test_an_answer_of_another_length_measures_nothing() -> None:
    """Whoever stops early would look fast."""
    with pytest.raises(ValueError, match="other lengths"):
        WORKLOADS["single"].rate([Timing(1.0, 2.0, 100)])
