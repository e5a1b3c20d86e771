"""The benchmarks, small: they run to their end, and say what could not be measured."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    "HALOGEN_BENCH" not in os.environ,
    reason="a minute of work: make verify runs the bench itself; HALOGEN_BENCH=1 runs this",
)
def test_the_bench_of_the_loader_measures_ours_and_leaves_nothing(tmp_path: Path) -> None:
    """Every figure is there, measured or skipped with a reason; its files are gone.

    Fault injection: turns red when `run` of bench/loader.py leaves its folder, or `Samples.skip` forgets why.
    """
    result, work = tmp_path / "figures.json", tmp_path / "work"
    command = [sys.executable, "-m", "bench.loader", "--small", "--rounds", "1"]
    command += ["--dir", str(work), "--json", str(result)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr
    figures = {figure["name"]: figure for figure in json.loads(result.read_text())["figures"]}
    assert {"loader_vs_fio", "loader_vs_safetensors", "loader_vs_next_peer"} < figures.keys()
    assert {
        "loader_peak_beyond_file",
        "second_engine_ms",
        "v2_vs_v1_load",
        "models_per_minute",
    } < figures.keys()
    assert [] == [name for name, each in figures.items() if each["value"] is None and not each["skipped"]]
    assert figures["v2_vs_v1_load"]["value"] > 0
    assert [] == list(work.iterdir())


def test_the_bench_of_the_converter_measures_speed_and_memory(tmp_path: Path) -> None:
    """Both figures are there, the converter keeps within its memory, and its files are gone.

    Fault injection: turns red when `measure` makes its files beside its folder.
    """
    result, work = tmp_path / "figures.json", tmp_path / "work"
    command = [sys.executable, "-m", "bench.convert", "--small", "--rounds", "1"]
    command += ["--dir", str(work), "--json", str(result)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr
    ratio, peak = json.loads(result.read_text())["figures"]
    assert ("convert_vs_write", "convert_peak") == (ratio["name"], peak["name"])
    assert ratio["value"] > 0
    assert 0 < peak["value"] <= peak["goal"]
    assert [] == list(work.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    "HALOGEN_BENCH" not in os.environ,
    reason="a minute of work: make verify runs the bench itself; HALOGEN_BENCH=1 runs this",
)
def test_the_bench_of_swaps_loses_no_request_and_no_token(tmp_path: Path) -> None:
    """Every figure is there, measured or skipped with a reason; what no speed excuses is reached; its files are gone.

    Fault injection: turns red when `Generations.borrow` gives whichever generation came last.
    """
    result, work = tmp_path / "figures.json", tmp_path / "work"
    command = [sys.executable, "-m", "bench.swap", "--small", "--dir", str(work), "--json", str(result)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr
    figures = {figure["name"]: figure for figure in json.loads(result.read_text())["figures"]}
    assert [] == [name for name, each in figures.items() if each["value"] is None and not each["skipped"]]
    lost = ("swap_wrong_tokens", "swap_failed_requests", "swap_back_differences")
    assert [0, 0, 0] == [figures[name]["value"] for name in lost]
    assert 4 == figures["swaps_applied"]["value"]
    assert 0 < figures["swap_p99_ratio"]["value"]
    assert 0 < figures["rollback_beside_slow_fetch_s"]["value"]
    assert {"swap_requests", "swap_window_tokens", "swap_memory_over"} < figures.keys()
    assert [] == list(work.iterdir())


def test_the_bench_of_the_pool_measures_time_and_what_is_unused(tmp_path: Path) -> None:
    """Every figure is there; that of the trace is skipped with a reason where nobody names one.

    Fault injection: turns red when `unused` takes no trace for one without requests.
    """
    result = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "bench.kv_pool",
        "--requests",
        "100",
        "--rounds",
        "1",
        "--json",
        str(result),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "HALOGEN_TRACE"}
    run = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert 0 == run.returncode, run.stderr
    block, ratio, mix, trace = json.loads(result.read_text())["figures"]
    assert ("kv_block_us", "kv_pool_vs_free_list") == (block["name"], ratio["name"])
    assert 0 < mix["value"] <= mix["goal"]
    assert (None, "HALOGEN_TRACE names no trace") == (trace["value"], trace["skipped"])


@pytest.mark.slow
@pytest.mark.skipif(
    "HALOGEN_BENCH" not in os.environ,
    reason="a minute of work: make verify runs the bench itself; HALOGEN_BENCH=1 runs this",
)
def test_the_bench_of_the_engine_measures_ours_and_keeps_only_models(tmp_path: Path) -> None:
    """Every figure is there, measured or skipped with a reason; turns are shown, and what a run made is gone.

    Fault injection: turns red when `Bench._measure` leaves out the turns of a section.
    """
    result, work = tmp_path / "figures.json", tmp_path / "work"
    command = [sys.executable, "-m", "bench.engine", "--small", "--dir", str(work), "--json", str(result)]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr
    figures = {figure["name"]: figure for figure in json.loads(result.read_text())["figures"]}
    assert {"decode_small_vs_vllm", "mix32_small_vs_vllm", "decode_medium_vs_bandwidth"} < figures.keys()
    assert {"served_single_vs_vllm", "served_mix32_vs_vllm", "wire_share"} < figures.keys()
    assert [] == [name for name, each in figures.items() if each["value"] is None and not each["skipped"]]
    assert figures["served_ready_s_halogen"]["value"] > 0
    turns = [line.split()[0] for line in run.stdout.splitlines() if "tokens/s  first token" in line]
    assert ["small", "small", "served"] == turns
    assert [] == list(work.glob("run-*"))


@pytest.mark.slow
@pytest.mark.skipif(
    "HALOGEN_BENCH" not in os.environ,
    reason="a minute of work: make verify runs the bench itself; HALOGEN_BENCH=1 runs this",
)
def test_the_bench_of_mixed_requests_answers_all_of_them_and_draws(tmp_path: Path) -> None:
    """Both batchers answer every request; figures and a plot are there, and what a run made is gone.

    Fault injection: turns red when `FifoBatch._is_over` keeps the blocks of a request that has ended.
    """
    result, work, plots = tmp_path / "figures.json", tmp_path / "work", tmp_path / "plots"
    plots.mkdir()
    command = [sys.executable, "-m", "bench.mixed", "--small", "--dir", str(work), "--json", str(result)]
    command += ["--plots", str(plots)] if importlib.util.find_spec("matplotlib") else []
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert 0 == run.returncode, run.stderr
    figures = {figure["name"]: figure for figure in json.loads(result.read_text())["figures"]}
    assert figures["short_p99_vs_fifo"]["value"] > 0
    assert figures["long_first_token_vs_fifo"]["value"] > 0
    assert 0 < figures["internal_fragmentation"]["value"] < figures["internal_fragmentation_fifo"]["value"]
    assert [] == list(work.glob("run-*"))
