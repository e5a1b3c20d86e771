"""Load on the gateways of a composed system: asks them in turn, checks every answer, and tells who gave it.

Runs inside the system's network, where the service's name resolves to every gateway there is at the moment. Like any
balancer before them, it takes a request that a gateway has not begun to answer to the next one.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from services.common.backoff import Backoff
from services.common.client import Client
from services.common.completion import Chunk, Completion
from services.common.errors import HalogenError, Unavailable
from services.common.rpc.address import Address
from services.common.rpc.credentials import Credentials
from services.common.rpc.endpoint import Endpoint

PROMPT: Final = "Once upon a time, in a village by the sea,"
TOKENS: Final = 16
TRIES: Final = 40
TIMEOUT_S: Final = 60.0


class Answer(NamedTuple):
    """A whole answer, and who gave it."""

    gateway: str
    engine: str
    token_ids: tuple[int, ...]


class Least(NamedTuple):
    """How many of a kind must have answered, and which part of all answers each must have given."""

    number: int
    share: float

    def faults(self, kind: str, answers: collections.Counter[str]) -> Iterator[str]:
        if len(answers) < self.number:
            yield f"{len(answers)} of {self.number} {kind}s answered"
        for name, times in answers.items():
            if times < self.share * answers.total():
                yield f"{kind} {name} took {times} of {answers.total()}"


class Gateways:
    """All gateways behind one name, in turn; a context manager that closes the connections."""

    def __init__(self, name: Address) -> None:
        self._name = name
        self._credentials = Credentials.of(token_file=Path(os.environ["HALOGEN_TOKEN_FILE"]))
        self._clients: dict[str, Client] = {}
        self._turn = itertools.count()
        self._scope = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._scope.aclose()

    async def next(self) -> tuple[str, Client]:
        """The gateway whose turn it is, of those that the name stands for now."""
        found = await asyncio.get_running_loop().getaddrinfo(*self._name, type=socket.SOCK_STREAM)
        hosts = sorted({str(place[4][0]) for place in found})
        address = str(Address(hosts[next(self._turn) % len(hosts)], self._name.port))
        if address not in self._clients:
            gateway = Endpoint(address, self._credentials)
            self._clients[address] = await self._scope.enter_async_context(Client(gateway, max_tries=1))
        return address, self._clients[address]


class Tally:
    """What became of the requests."""

    def __init__(self) -> None:
        self.gateways: collections.Counter[str] = collections.Counter()
        self.engines: collections.Counter[str] = collections.Counter()
        self.failures: collections.Counter[str] = collections.Counter()
        self.taken_elsewhere = 0
        self._expected: tuple[int, ...] | None = None

    def add(self, answer: Answer) -> None:
        """Counts an answer; all of them must have the same tokens."""
        self._expected = self._expected or answer.token_ids
        if answer.token_ids != self._expected:
            self.failures["other tokens than the first answer"] += 1
        self.gateways[answer.gateway] += 1
        self.engines[answer.engine] += 1

    def faults(self, engines: Least, gateways: Least) -> Iterator[str]:
        """What is not as it should be."""
        for failure, times in self.failures.items():
            yield f"{times} x {failure}"
        yield from engines.faults("engine", self.engines)
        yield from gateways.faults("gateway", self.gateways)

    def summary(self) -> str:
        facts = {
            "answered": self.gateways.total(),
            "engines": sorted(self.engines.values()),
            "gateways": sorted(self.gateways.values()),
            "taken elsewhere": self.taken_elsewhere,
        }
        return ", ".join(f"{name} {json.dumps(value)}" for name, value in facts.items())


async def ask(gateways: Gateways, tally: Tally) -> None:
    """One request, to its answer or its failure."""
    backoff = Backoff()
    for _ in range(TRIES):
        address, client = await gateways.next()
        chunks: list[Chunk] = []
        try:
            async with client.generate(
                PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True, timeout_s=TIMEOUT_S
            ) as stream:
                async for chunk in stream:
                    chunks.append(chunk)  # what came before a failure counts
        except Unavailable as refusal:
            if not chunks:
                tally.taken_elsewhere += 1
                await backoff.pause()
                continue
            tally.failures[f"cut off: {refusal}"] += 1
        except HalogenError as failure:
            tally.failures[f"{type(failure).__name__}: {failure}"] += 1
        else:
            tally.add(_answer(address, Completion.of(chunks)))
        return
    tally.failures[f"no gateway took it in {TRIES} tries"] += 1


def _answer(gateway: str, completion: Completion) -> Answer:
    engine = completion.provenance.engine_id if completion.provenance else "unknown"
    return Answer(gateway, engine, tuple(completion.token_ids))


async def load(options: argparse.Namespace) -> Tally:
    """Asks until so many requests are asked, or until SIGTERM; finishes what it began."""
    tally, stop = Tally(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    numbers = itertools.count() if options.requests is None else iter(range(options.requests))

    async def work(gateways: Gateways) -> None:
        for _ in numbers:
            if stop.is_set():
                return
            await ask(gateways, tally)

    async with Gateways(options.gateway) as gateways, asyncio.TaskGroup() as tasks:
        for _ in range(options.at_once):
            tasks.create_task(work(gateways))
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", type=Address.parse, default="gateway:50051", help="host:port of all")
    parser.add_argument("--requests", type=int, help="how many; until SIGTERM when not given")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--engines", type=int, default=1, help="engines that must have answered")
    parser.add_argument("--engine-share", type=float, default=0.0, help="least part that each took")
    parser.add_argument("--gateways", type=int, default=1, help="gateways that must have answered")
    parser.add_argument("--gateway-share", type=float, default=0.0, help="least part that each took")
    options = parser.parse_args()
    tally = asyncio.run(load(options))
    print(tally.summary())
    faults = list(
        tally.faults(
            Least(options.engines, options.engine_share), Least(options.gateways, options.gateway_share)
        )
    )
    print(*faults, sep="\n", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
