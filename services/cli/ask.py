"""Asking a served model from the command line, the answer printed as it comes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from typing import NamedTuple, cast

from rich.console import Console

from services.cli.console import CommandError, err, out
from services.common.client import MAX_TRIES, Client, CompletionStream
from services.common.client_options import Options
from services.common.completion import Chunk, Completion
from services.common.rpc.endpoint import Peer


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


def user(content: str) -> Message:
    """Raises CommandError when it says nothing."""
    if not content.strip():
        raise CommandError("the question is empty: ask something, or leave it out to talk")
    return Message("user", content)


class Asking(NamedTuple):
    """What a command may say about an answer; None is the server's choice."""

    model: str = ""
    cohort: str = ""
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    cache_salt: str = ""
    timeout_s: float | None = None
    logprobs: bool | None = None

    def options(self) -> Options:
        chosen = {name: value for name, value in self._asdict().items() if value not in (None, "", ())}
        return cast("Options", chosen)


class Timing(NamedTuple):
    """What the asker felt."""

    first_token_s: float
    whole_s: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first over the time since the first; 0 for an answer of one token."""
        after_s = self.whole_s - self.first_token_s
        return (self.tokens - 1) / after_s if self.tokens > 1 and after_s > 0 else 0.0


async def generate(
    gateway: Peer,
    prompt: str,
    asking: Asking,
    *,
    as_json: bool = False,
    figures: Console = err,
    max_tries: int = MAX_TRIES,
) -> Completion:
    """Continues a text and shows it, with its `figures` there."""
    async with Client(gateway, max_tries=max_tries) as client:
        return await _show(client.generate(prompt, **asking.options()), figures, as_json=as_json)


async def chat(
    gateway: Peer,
    messages: Sequence[Message],
    asking: Asking,
    *,
    as_json: bool = False,
    figures: Console = err,
    max_tries: int = MAX_TRIES,
) -> Completion:
    """Asks for the next turn of a conversation and shows it, with its `figures` there."""
    async with Client(gateway, max_tries=max_tries) as client:
        turns = [message._asdict() for message in messages]
        return await _show(client.chat(turns, **asking.options()), figures, as_json=as_json)


async def converse(gateway: Peer, begun: Sequence[Message], asking: Asking) -> None:
    """Talks until the end of standard input."""
    messages = list(begun)
    while True:
        try:
            line = await asyncio.to_thread(input, "> ")
        except EOFError:
            return
        if line.strip():
            messages.append(user(line))
            answer = await chat(gateway, messages, asking)
            messages.append(Message("assistant", answer.text))


async def _show(stream: CompletionStream, figures: Console, *, as_json: bool) -> Completion:
    """Prints the text as it comes and what gave it; or, as JSON, everything at the end."""
    started, first_token_s, chunks = time.perf_counter(), 0.0, list[Chunk]()
    async with stream:
        async for chunk in stream:
            first_token_s = first_token_s or time.perf_counter() - started
            chunks.append(chunk)
            if not as_json:
                out.print(chunk.text, end="")
    completion = Completion.of(chunks)
    timing = Timing(first_token_s, time.perf_counter() - started, completion.usage.completion_tokens)
    if as_json:
        out.print(json.dumps(_facts(completion, timing), ensure_ascii=False))
    else:
        out.print()
        if completion.logprobs:
            figures.print(_likelihoods(completion), style="dim")
        figures.print(_summary(completion, timing), style="dim")
    return completion


def _summary(completion: Completion, timing: Timing) -> str:
    source = completion.provenance
    usage = completion.usage
    kept = (
        f", {usage.cached_tokens} of {usage.prompt_tokens} of the prompt kept" if usage.cached_tokens else ""
    )
    origin = f"artifact {source.artifact_id[:12]} revision {source.revision}" if source else "no engine"
    return (
        f"[{origin} · first token {timing.first_token_s * 1e3:.0f} ms · {timing.tokens_per_s:.1f} tokens/s · "
        f"{usage.completion_tokens} tokens{kept} · {completion.finish_reason.value}]"
    )


def _likelihoods(completion: Completion) -> str:
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return f"[token id:logprob · {' '.join(f'{token_id}:{logprob:.4f}' for token_id, logprob in pairs)}]"


def _facts(completion: Completion, timing: Timing) -> dict[str, object]:
    facts = dataclasses.asdict(completion) | {"finish_reason": completion.finish_reason.value}
    return facts | {"first_token_s": timing.first_token_s, "tokens_per_s": timing.tokens_per_s}
