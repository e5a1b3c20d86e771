"""Settings: defaults fit the host, and what cannot work is refused before anything starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.common.registry.publish_records import Strategy, SwapMode
from services.engine.config import EngineConfig
from services.engine.host import memory_bytes
from services.engine.kernels import choice
from services.engine.swap_policy import SwapPolicy


def load(key: Path, *flags: str) -> EngineConfig:
    return EngineConfig.load(["--loader", "127.0.0.1:1", "--ticket-key-file", str(key), *flags])


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(b"k" * 32)
    path.chmod(0o600)
    return path


def test_defaults_fit_the_host(key: Path) -> None:
    """The cores that we may use, and no more than a quarter of the memory."""
    config = load(key)
    assert 1 <= config.threads <= len(os.sched_getaffinity(0))
    assert config.kv_arena_bytes <= max(1 << 30, memory_bytes() // 4)
    assert (64, "auto", "auto", ()) == (config.chunk_tokens, config.dtype, config.kernels, config.serves)
    assert "auto" == config.kv_dtype


def test_flags_are_read(key: Path) -> None:
    """As the operator writes them."""
    config = load(key, "--serves", "a,b@canary", "--kv-arena-bytes", "4096", "--dtype", "float32")
    assert (False, 0.03) == (config.kv_block_pool_autoscale, config.kv_block_pool_min_free_ratio)
    assert load(key, "--kv-block-pool-autoscale", "true").kv_block_pool_autoscale
    assert (("a", "b@canary"), 4096, "float32") == (config.serves, config.kv_arena_bytes, config.dtype)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--serves", "a@blue"), "blue"),
        (("--threads", "0"), "--threads"),
        (("--cpus", "100000"), "--cpus"),
        (("--cpus", "two"), "--cpus"),
        (("--max-concurrent-requests", "-1"), "--max-concurrent-requests"),
        (("--chunk-tokens", "0"), "--chunk-tokens"),
        (("--kv-block-pool-min-free-ratio", "0.6"), "--kv-block-pool-min-free-ratio"),
        (("--dtype", "int8"), "--dtype"),
        (("--kv-dtype", "fp8"), "--kv-dtype"),
        (("--kernels", "sse2"), "--kernels"),
        (("--checkpoint.timeout-ms", "0"), "--checkpoint.timeout-ms"),
        (("--checkpoint.memory-guard-ratio", "1.1"), "--checkpoint.memory-guard-ratio"),
        (("--checkpoint.strategy", "drain"), "--checkpoint.strategy"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    flags: tuple[str, ...], message: str, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the setting."""
    with pytest.raises(SystemExit):
        load(key, *flags)
    assert message in capsys.readouterr().err


def test_kernels_that_cannot_run_here_are_refused_in_one_line(
    key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything starts, with what is missing.

    Fault injection: turns red when the configuration does not ask.
    """
    monkeypatch.setattr(choice, "obstacle", lambda name: f"no {name}")
    assert "auto" == load(key).kernels
    assert "portable" == load(key, "--kernels", "portable").kernels
    with pytest.raises(SystemExit):
        load(key, "--kernels", "avx2")
    assert "kernels avx2 cannot run here: no avx2; auto takes the fastest" in capsys.readouterr().err


def test_how_artifacts_are_taken_into_service(key: Path) -> None:
    """The section `checkpoint`, as generations follow it; the word of a publish, where there is one, wins."""
    policy = load(
        key, "--checkpoint.strategy", "drain_then_load", "--checkpoint.timeout-ms", "1500"
    ).checkpoint.policy
    assert (
        SwapPolicy(SwapMode.DRAIN_THEN_LOAD, 1.5, fallback_on_failure=True, memory_guard_ratio=0.85) == policy
    )
    said = Strategy(mode=SwapMode.ATOMIC_SWAP, fallback_on_failure=False, memory_guard_ratio=0.5)
    expected = SwapPolicy(SwapMode.ATOMIC_SWAP, 1.5, fallback_on_failure=False, memory_guard_ratio=0.5)
    assert expected == policy.under(said)
    assert policy == policy.under(Strategy())


def test_a_key_that_others_can_read_is_refused(key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At start, not at the first ticket."""
    key.chmod(0o644)
    with pytest.raises(SystemExit):
        load(key)
    assert "chmod 600" in capsys.readouterr().err


def test_threads_are_for_the_processors_that_are_chosen(key: Path) -> None:
    """One of those that we may use; what we may not use is refused by the setting's name."""
    first = min(os.sched_getaffinity(0))
    assert (str(first), 1) == (load(key, "--cpus", str(first)).cpus, load(key, "--cpus", str(first)).threads)
    assert 7 == load(key, "--cpus", str(first), "--threads", "7").threads
