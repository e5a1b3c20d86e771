"""`halogen push`: what was served, told to the registry of models (again)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Annotated

import typer

from halogen.v1 import control_pb2 as pb
from services.cli.asked_gateway import AskedGateway
from services.cli.console import CommandError, err, out
from services.cli.control_client import ControlClient
from services.cli.gateway_option import gateway_option
from services.cli.message_json import fields_of
from services.cli.operator_name import operator_name
from services.cli.options import (
    MAX_REVISION,
    JsonOption,
    PublishedModelArgument,
    WhoOption,
    WhyOption,
)
from services.cli.outcome_text import stage_name
from services.cli.traced import run_traced
from services.common.rpc.endpoint import Peer
from services.common.telemetry.attributes import MODEL
from services.common.telemetry.tracing import span

PushedRevisionArgument = Annotated[
    int | None,
    typer.Argument(min=1, max=MAX_REVISION, help="One that was served; the model's last when left out."),
]
WaitPushedOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait until the registry has it; 0 does not wait.")
]


@gateway_option
def push(
    model: PublishedModelArgument,
    revision: PushedRevisionArgument = None,
    *,
    gateway: AskedGateway,
    why: WhyOption,
    who: WhoOption = "",
    wait: WaitPushedOption = 300,
    as_json: JsonOption = False,
) -> None:
    """Tell the registry of models what was served; status 1 when it does not take it."""
    request = pb.PushCommitRequest(model=model, revision=revision or 0, who=who or operator_name(), why=why)
    pushed = run_traced(follow(gateway.endpoint, request, wait_s=wait, patience_s=gateway.patience_s))
    if as_json:
        out.print(json.dumps(fields_of(pushed)))
    else:
        out.print(f"revision {pushed.revision} of {model} {_stands(pushed)}")
    if pushed.registry_sync_status == pb.REGISTRY_SYNC_STATUS_FAILED:
        raise typer.Exit(1)


async def follow(
    gateway: Peer, request: pb.PushCommitRequest, *, wait_s: float, patience_s: float
) -> pb.PushCommitResponse:
    """How the push stands once it has ended, or at once when `wait_s` is 0.

    Raises:
        HalogenError: The gateway refuses, or none answers within `patience_s` seconds.
        CommandError: It has not ended after `wait_s` seconds.
    """
    with span("push", {MODEL: request.model}), err.status("waiting for the registry"):
        async with ControlClient(gateway) as control:
            await control.connect(patience_s)
            try:
                async with asyncio.timeout(wait_s or None):
                    return await _last(control, request, is_first_enough=not wait_s)
            except TimeoutError:
                raise CommandError(
                    f"{request.model} is not in the registry after {wait_s:g} s, and still tried; see: halogen status"
                ) from None


async def _last(
    control: ControlClient, request: pb.PushCommitRequest, *, is_first_enough: bool
) -> pb.PushCommitResponse:
    async with contextlib.aclosing(control.push(request)) as responses:
        stands = await anext(responses)
        if not is_first_enough:
            async for response in responses:
                stands = response
        return stands


def _stands(pushed: pb.PushCommitResponse) -> str:
    match pushed.registry_sync_status:
        case pb.REGISTRY_SYNC_STATUS_SYNCED:
            return "is in the registry"
        case pb.REGISTRY_SYNC_STATUS_FAILED:
            failure = pushed.failure
            return f"FAILED ({stage_name(failure.stage)}, {failure.reason}): {failure.message}"
    return "is to be pushed; see: halogen status"
