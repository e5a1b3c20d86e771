"""llama.cpp's engine, measured by its own llama-bench: a fresh process, with a run to warm up, for every repeat."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any, ClassVar

from bench.engine_names import LLAMACPP
from bench.program import ProgramFailedError
from bench.workload import Timing, Workload


@dataclasses.dataclass(frozen=True, slots=True)
class LlamaBench:
    """A contender that decodes one stream and computes prompts, no more.

    Attributes:
        command: Where llama-bench is.
        gguf: The model.
        threads: That compute.
    """

    name: ClassVar[str] = LLAMACPP
    roots: ClassVar[tuple[int, ...]] = ()
    ready_s: ClassVar[float] = 0.0

    command: Path
    gguf: Path
    threads: int

    async def run(self, workload: Workload, seed: int) -> list[Timing]:
        """One repeat; its tokens are of its own choice, and so is what it counts as its time."""
        del seed
        (size,) = workload.sizes
        if workload.measure == "prefill":
            seconds = await self._measure("--n-prompt", str(size.prompt), "--n-gen", "0")
            return [Timing(seconds, seconds, 1)]
        steps = ("--n-prompt", "0", "--n-gen", str(size.tokens - 1), "--n-depth", str(size.prompt))
        return [Timing(0.0, await self._measure(*steps), size.tokens)]

    async def _measure(self, *what: str) -> float:
        """Seconds."""
        threads = str(self.threads)
        process = await asyncio.create_subprocess_exec(
            self.command, "--model", self.gguf, "--threads", threads, "--repetitions", "1", "--output", "json", *what,
            stdin=DEVNULL, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        answer, complaint = await process.communicate()
        if process.returncode:
            last = complaint.decode(errors="replace").splitlines()[-5:]
            raise ProgramFailedError(f"{self.command.name} ended with status {process.returncode}: {last}")
        told: list[dict[str, Any]] = json.loads(answer)
        return float(told[0]["avg_ns"]) / 1e9
