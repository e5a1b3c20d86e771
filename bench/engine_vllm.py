"""``python -m bench.engine_vllm MODEL``: vLLM's engine in this process, stepped by hand, asked for workloads by lines.

It runs in vLLM's environment. What vLLM does not have to do here it is spared: text, statistics, a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from bench.ask import Ask
from bench.workload import MOST_TOKENS, WORKLOADS, Timing

_numbers: Final = itertools.count()


class VLLM:
    """A running engine with one model.

    Args:
        model: A Hugging Face directory.
        vocabulary: Its tokens.
    """

    def __init__(self, model: str, vocabulary: int) -> None:
        self._vllm: Any = importlib.import_module("vllm")  # of an environment of its own
        options = self._vllm.EngineArgs(
            model=model,
            dtype="bfloat16",
            max_model_len=2 * MOST_TOKENS,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._engine: Any = self._vllm.LLMEngine.from_engine_args(options)
        self._vocabulary = vocabulary

    def run(self, workload: str, seed: int) -> list[Timing]:
        """All requests of a workload at once, each to its end."""
        asks = WORKLOADS[workload].asks(seed, self._vocabulary)
        began_s = time.perf_counter()
        names = [self._add(ask) for ask in asks]
        times: dict[str, list[float]] = {name: [] for name in names}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                new = len(output.outputs[0].token_ids)
                times[output.request_id.split("|")[0]] += [time.perf_counter() - began_s] * new
        return [Timing(each[0], each[-1], len(each)) for each in times.values()]

    def _add(self, ask: Ask) -> str:
        name = f"bench{next(_numbers)}|"
        self._engine.add_request(name, {"prompt_token_ids": list(ask.prompt)}, self._sampling(ask.tokens))
        return name.removesuffix("|")

    def _sampling(self, tokens: int) -> Any:
        kind = self._vllm.sampling_params.RequestOutputKind.DELTA
        return self._vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=kind
        )


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--vocabulary", type=int, required=True)
    options = parser.parse_args(argv)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it logs to where our answers go
    vllm = VLLM(options.model, options.vocabulary)
    print("ready", file=answers, flush=True)
    while words := sys.stdin.readline().split():
        print(json.dumps({"timings": vllm.run(words[0], int(words[1]))}), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
