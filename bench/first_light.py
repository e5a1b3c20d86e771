"""Tokens per second of our engine, served through gateway, scheduler and gRPC, beside transformers' generate.

Both run SmolLM2-135M-Instruct in bf16 on the same weights and the same number of threads, in turns (ours,
theirs, ours, theirs), with a probe of the memory's bandwidth before each. Greedy; no answer ends early.

One request: 128 tokens of prompt, 128 of answer. Sixteen at once: 70 % with 60 tokens of prompt and 30 of
answer, 30 % with 500 and 120; transformers gets them as one padded batch, and only the tokens that were asked
for count. A second figure for sixteen has equal lengths (128 and 64), where padding costs nothing. At last sixteen run,
sixteen more wait, which is all that may, and others are told so: refused_p99_ms is how long that takes.

    make bench BENCH=first_light        or        python -m bench.first_light --rounds 3 --json figures.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from bench.ask import SMOLLM2_MIX, Ask, Size
from bench.figure import Figure, write_figures
from bench.refusals import ENGINE_FLAGS, SCHEDULER_FLAGS, refused_after
from services.cli import demo, publish
from services.cli.control_client import Order
from services.cli.home import Home
from services.cli.stack import Stack, reserved_addresses
from services.common.client import Client


class Workload(NamedTuple):
    name: str
    asks: list[Ask]
    goal: float | None

    @property
    def tokens(self) -> int:
        return sum(ask.tokens for ask in self.asks)


class Round(NamedTuple):
    """Tokens per second of both, and the bandwidth, in GB/s, before each."""

    ours: float
    theirs: float
    bandwidth: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def workloads() -> list[Workload]:
    chance = random.Random(7)

    def ask(prompt: int, tokens: int) -> Ask:
        return SMOLLM2_MIX.ask(chance, Size(prompt, tokens))

    mixed = [ask(*SMOLLM2_MIX.short) for _ in range(11)] + [ask(*SMOLLM2_MIX.long) for _ in range(5)]
    chance.shuffle(mixed)
    return [
        Workload("served_1_vs_transformers", [ask(128, 128)], 1.0),
        Workload("served_16_vs_transformers", mixed, 3.0),
        Workload("served_16_equal_vs_transformers", [ask(128, 64) for _ in range(16)], None),
    ]


class Theirs:
    """transformers' generate, one padded batch."""

    def __init__(self, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = _load(folder)
        self._model.generation_config.eos_token_id = None
        self._model.generation_config.pad_token_id = 0

    def run(self, workload: Workload) -> None:
        longest = max(len(ask.prompt) for ask in workload.asks)
        ids = torch.tensor([[0] * (longest - len(ask.prompt)) + [*ask.prompt] for ask in workload.asks])
        mask = torch.tensor(
            [[0] * (longest - len(ask.prompt)) + [1] * len(ask.prompt) for ask in workload.asks]
        )
        tokens = max(ask.tokens for ask in workload.asks)
        with torch.inference_mode():
            out = self._model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)
        assert out.shape[1] == longest + tokens


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


async def ours(client: Client, workload: Workload) -> None:
    async def one(ask: Ask) -> None:
        answer = await client.generate(
            ask.prompt, max_tokens=ask.tokens, temperature=0, ignore_eos=True
        ).complete()
        assert len(answer.token_ids) == ask.tokens

    await asyncio.gather(*(one(ask) for ask in workload.asks))


def bandwidth() -> float:
    """GB/s of reading 1 GiB."""
    data = torch.ones(1 << 28)
    started = time.perf_counter()
    data.sum()
    return data.nbytes / (time.perf_counter() - started) / 1e9


async def timed(work: Callable[[], Coroutine[Any, Any, None]], tokens: int) -> float:
    started = time.perf_counter()
    await work()
    return tokens / (time.perf_counter() - started)


async def one_round(client: Client, theirs: Theirs, workload: Workload) -> Round:
    before_ours = bandwidth()
    fast = await timed(lambda: ours(client, workload), workload.tokens)
    before_theirs = bandwidth()
    slow = await timed(lambda: asyncio.to_thread(theirs.run, workload), workload.tokens)
    return Round(fast, slow, (before_ours, before_theirs))


def show(workload: Workload, rounds: list[Round]) -> float:
    ratio = statistics.median(each.ratio for each in rounds)
    goal = "" if workload.goal is None else f"   (goal {workload.goal:.1f})"
    print(f"\n{workload.name}: {ratio:.2f} x{goal}")
    for each in rounds:
        print(
            f"  ours {each.ours:7.1f} tokens/s   transformers {each.theirs:7.1f} tokens/s   {each.ratio:5.2f} x"
            f"   bandwidth {each.bandwidth[0]:.0f} and {each.bandwidth[1]:.0f} GB/s"
        )
    return ratio


async def measure(home: Home, model: demo.DemoModel, options: argparse.Namespace) -> list[Figure]:
    # Every round asks the same: with a cache the prompts would be computed once, and by transformers every time.
    engine = ("--threads", str(options.threads), "--prefix-cache", "false", *ENGINE_FLAGS)
    flags = {"engine": engine, "scheduler": SCHEDULER_FLAGS}
    with reserved_addresses() as addresses:
        async with Stack(home, addresses, print, flags), Client(addresses.gateway) as client:
            order = Order("smollm2", "stable", "", who="bench", why="bench")
            await publish.publish(
                addresses.gateway, order, model.artifact, str(home.store), reverify=False, wait_s=120
            )
            theirs = Theirs(model.hugging_face, options.threads)
            found = [await figure(client, theirs, workload, options.rounds) for workload in workloads()]
            found.append(await refused_after(addresses))
            print(found[-1])
            return found


async def figure(client: Client, theirs: Theirs, workload: Workload, rounds: int) -> Figure:
    """The ratio of one workload, its first round only to warm both."""
    await one_round(client, theirs, workload)
    ratio = show(workload, [await one_round(client, theirs, workload) for _ in range(rounds)])
    return Figure(name=workload.name, value=ratio, unit="x", goal=workload.goal)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="pairs of runs; the median of their ratios counts"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads that compute, for both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    (kept := Home.find()).make()
    model = demo.ensure(kept.models)
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder) / ".halogen")
        home.make()
        figures = asyncio.run(measure(home, model, options))
    if options.json:
        write_figures(options.json, figures)


if __name__ == "__main__":
    main()
