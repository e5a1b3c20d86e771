"""How each contender is started: engines by themselves, and served."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from bench.contender import Contender, EngineContender, ServedContender
from bench.engine_model import EngineModel
from bench.engine_names import LLAMACPP, OURS, VLLM
from bench.http_server import MODEL, free_port, http_server
from bench.llama_bench import LlamaBench
from bench.lone_loader import lone_loader
from bench.peer_home import PeerHome
from bench.program import program
from bench.served_ours import served_ours
from bench.workload import MOST_AT_ONCE, MOST_TOKENS

_LOADER_THREADS: Final = 8
_SLOT_TOKENS: Final = 1024  # of llama.cpp's server, which parts its memory evenly


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contenders:
    """Everybody, for one model.

    Attributes:
        place: Our loader's flags that say where it puts weights.
        threads: Of everybody's, that compute.
        work: For files and logs.
    """

    model: EngineModel
    peers: PeerHome
    place: tuple[str, ...]
    threads: int
    work: Path

    def engine(self, name: str) -> AbstractAsyncContextManager[Contender]:
        """An engine without a server."""
        return {OURS: self._ours, VLLM: self._vllm, LLAMACPP: self._llamacpp}[name]()

    def served(self, name: str) -> AbstractAsyncContextManager[Contender]:
        """A server, reached by its own protocol."""
        return {OURS: self._served_ours, VLLM: self._served_vllm, LLAMACPP: self._served_llamacpp}[name]()

    @contextlib.asynccontextmanager
    async def _ours(self) -> AsyncIterator[Contender]:
        began_s = time.perf_counter()
        place = (*self.place, "--cache-dir", str(self.model.cache))
        async with lone_loader(self.model.store, place, _LOADER_THREADS, self.work) as loader:
            arguments = (loader.address, self.model.artifact_id, "--threads", str(self.threads))
            async with program("bench.engine_ours", *arguments, logs=self.work) as running:
                ready_s = time.perf_counter() - began_s
                yield EngineContender(OURS, running, ready_s, (loader.program.pid,))

    @contextlib.asynccontextmanager
    async def _vllm(self) -> AsyncIterator[Contender]:
        began_s = time.perf_counter()
        environment = self.peers.vllm_environment(self.threads) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        arguments = (str(self.model.hugging_face), "--vocabulary", str(self.model.shape.vocab_size))
        async with program(
            "bench.engine_vllm", *arguments, logs=self.work, environment=environment,
            python=self.peers.vllm / "python",
        ) as running:  # fmt: skip
            yield EngineContender(VLLM, running, time.perf_counter() - began_s)

    @contextlib.asynccontextmanager
    async def _llamacpp(self) -> AsyncIterator[Contender]:
        yield LlamaBench(self.peers.llamacpp / "llama-bench", self.model.gguf, self.threads)

    @contextlib.asynccontextmanager
    async def _served_ours(self) -> AsyncIterator[Contender]:
        async with served_ours(self.model, self.place, self.threads, self.work) as ours:
            yield ours

    @contextlib.asynccontextmanager
    async def _served_vllm(self) -> AsyncIterator[Contender]:
        command = (
            self.peers.vllm / "vllm", "serve", self.model.hugging_face, "--served-model-name", MODEL,
            "--dtype", "bfloat16", "--max-model-len", str(2 * MOST_TOKENS), "--no-enable-prefix-caching",
            "--disable-uvicorn-access-log", "--host", "127.0.0.1",
        )  # fmt: skip
        async with self._over_http(VLLM, command, self.peers.vllm_environment(self.threads), {}) as served:
            yield served

    @contextlib.asynccontextmanager
    async def _served_llamacpp(self) -> AsyncIterator[Contender]:
        threads, context = str(self.threads), str(MOST_AT_ONCE * _SLOT_TOKENS)
        command = (
            self.peers.llamacpp / "llama-server", "--model", self.model.gguf, "--threads", threads,
            "--threads-batch", threads, "--parallel", str(MOST_AT_ONCE), "--ctx-size", context,
            "--host", "127.0.0.1",
        )  # fmt: skip
        async with self._over_http(LLAMACPP, command, {}, {"cache_prompt": False}) as served:
            yield served

    @contextlib.asynccontextmanager
    async def _over_http(
        self, name: str, command: tuple[Any, ...], environment: dict[str, str], more: dict[str, Any]
    ) -> AsyncIterator[Contender]:
        port = free_port()
        told, log = (*command, "--port", str(port)), self.work / f"{name}-served.log"
        async with http_server(told, port, log, environment=environment, more=more) as server:
            vocabulary = self.model.shape.vocab_size
            yield ServedContender(name, (server.pid,), server.ready_s, vocabulary, server.client.ask)


Start = Callable[[str], AbstractAsyncContextManager[Contender]]
