"""`halogen watch`: how a publish goes, until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Annotated, Final

import typer

from halogen.v1 import control_pb2 as pb
from services.cli.asked_gateway import AskedGateway
from services.cli.console import out
from services.cli.control_client import ControlClient
from services.cli.gateway_option import gateway_option
from services.cli.message_json import fields_of
from services.cli.options import MAX_REVISION, JsonOption, PublishedModelArgument
from services.cli.outcome_text import outcome_text
from services.cli.traced import run_traced
from services.common.errors import Unavailable
from services.common.rpc.endpoint import Peer

_ANSWER_S: Final = 10.0

RevisionArgument = Annotated[
    int | None,
    typer.Argument(min=1, max=MAX_REVISION, help="Of which publish; the model's last when left out."),
]


@gateway_option
def watch(
    model: PublishedModelArgument,
    revision: RevisionArgument = None,
    *,
    gateway: AskedGateway,
    as_json: JsonOption = False,
) -> None:
    """Follow a publish until it has ended, with a line for every change; status 1 unless it was served."""
    if not run_traced(follow(gateway.endpoint, model, revision, as_json=as_json)):
        raise typer.Exit(1)


async def follow(gateway: Peer, model: str, revision: int | None, *, as_json: bool) -> bool:
    """Whether it was applied."""
    async with ControlClient(gateway) as control:
        await control.connect(_ANSWER_S)
        chosen = await _last(control, model) if revision is None else revision
        async with contextlib.aclosing(control.watch_publish(model, chosen)) as outcomes:
            outcome = await _first(outcomes)
            _tell(model, outcome, as_json=as_json)
            async for outcome in outcomes:
                _tell(model, outcome, as_json=as_json)
        return outcome.state == pb.PUBLISH_STATE_APPLIED


async def _first(outcomes: AsyncGenerator[pb.PublishOutcome, None]) -> pb.PublishOutcome:
    """How it stands.

    Raises:
        Unavailable: The gateway does not say so in time.
    """
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await anext(outcomes)
    except TimeoutError:
        raise Unavailable(
            f"the gateway has not said within {_ANSWER_S:g} s how the publish stands: it may have lost etcd; ask another, "
            "or look: halogen status",
            reason="NO_ANSWER",
        ) from None


def _tell(model: str, outcome: pb.PublishOutcome, *, as_json: bool) -> None:
    out.print(json.dumps(fields_of(outcome)) if as_json else _line(model, outcome))


async def _last(control: ControlClient, model: str) -> int:
    (entry,) = await control.history(pb.ListHistoryRequest(model=model, max_entries=1), _ANSWER_S)
    return entry.revision


def _line(model: str, outcome: pb.PublishOutcome) -> str:
    return f"revision {outcome.revision} of {model}: {outcome_text(outcome)}"
