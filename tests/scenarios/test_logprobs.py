"""Logprobs from the engine to the client: each beside its token, the same bits in any company."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from structlog.testing import capture_logs

from services.cli import ask
from services.common.client import Client
from services.common.completion import Chunk, Completion
from tests.scenarios.cluster import Cluster

Start = Callable[..., Any]
PROMPT = "Once upon a time"
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "seed": 5}


async def answer(client: Client, **options: Any) -> Completion:
    """An answer of whose every chunk each token has its logprob."""
    chunks: list[Chunk] = []
    options = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, "logprobs": True, **options}
    async for chunk in client.generate(PROMPT, timeout_s=120, **options):
        assert len(chunk.token_ids) == len(chunk.logprobs)
        chunks.append(chunk)
    return Completion.of(chunks)


async def test_logprobs_are_told_on_request_and_are_the_same_in_any_company(
    start: Start, driver: str, stories: dict[str, Path]
) -> None:
    """Greedy and sampled, alone and eight at once: ids and bits; nothing of it where nobody asks; cut as the ids are.

    Fault injection: turns red when TokenStream gives out the tokens of a piece and keeps their logprobs.
    """
    system: Cluster = await start(driver, engine={"chunk_tokens": 5})
    await system.publish("stories", stories["stories-v1"])
    async with system.client() as client:
        greedy, sampled = await answer(client), await answer(client, **SAMPLED)
        together = await asyncio.gather(*(answer(client, **each) for each in [{}, SAMPLED] * 4))
        silent = await client.generate(PROMPT, max_tokens=24, temperature=0, ignore_eos=True).complete()
        middle = greedy.text[8:16]
        cut = await answer(client, stop=[middle])
    assert [(each.token_ids, each.logprobs) for each in [greedy, sampled] * 4] == [
        (each.token_ids, each.logprobs) for each in together
    ]
    assert all(logprob <= 0 for each in (greedy, sampled) for logprob in each.logprobs)
    assert (greedy.token_ids, ()) == (silent.token_ids, silent.logprobs)
    assert middle == cut.matched_stop
    assert greedy.logprobs[: len(cut.token_ids)] == cut.logprobs
    assert len(cut.logprobs) < 24
    assert greedy.provenance is not None
    assert greedy.provenance.sampling.logprobs


async def test_the_command_shows_logprobs_beside_their_tokens(
    start: Start, stories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the other figures, below the text, which is as it is without."""
    system: Cluster = await start("in_process")
    await system.publish("stories", stories["stories-v1"])
    figures = io.StringIO()
    with capture_logs():  # which would come between the pieces of the text
        said = await ask.generate(
            system.gateway,
            PROMPT,
            ask.Asking(max_tokens=4, temperature=0.0, logprobs=True),
            figures=Console(file=figures, markup=False, width=500),
        )
    told = " ".join(
        f"{token_id}:{each:.4f}" for token_id, each in zip(said.token_ids, said.logprobs, strict=True)
    )
    assert f"[token id:logprob · {told}]" in figures.getvalue()
    assert said.text in capsys.readouterr().out
