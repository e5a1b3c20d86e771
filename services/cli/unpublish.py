"""Unpublishing from the command line: the cohort shall serve nothing, and is waited for to let go."""

from __future__ import annotations

import asyncio
import contextlib

from halogen.v1 import control_pb2 as pb
from services.cli.console import CommandError, err
from services.cli.control_client import START_S, ControlClient, Order
from services.common.rpc.endpoint import Peer
from services.common.telemetry.attributes import COHORT, MODEL
from services.common.telemetry.tracing import span


async def unpublish(gateway: Peer, order: Order, *, wait_s: float, patience_s: float = START_S) -> int:
    """Withdraws the cohort and returns the revision; waits until no engine holds it unless `wait_s` is 0.

    Raises:
        Unavailable: No gateway answers within `patience_s` seconds.
        CommandError: An engine still holds it when the time is over.
    """
    with span("unpublish", {MODEL: order.model, COHORT: order.cohort}):
        async with ControlClient(gateway) as control:
            await control.connect(patience_s)
            revision = await control.unpublish(order)
            if wait_s:
                with err.status("waiting for the engines"):
                    await _wait_until_unloaded(control, order, revision, wait_s)
            return revision


async def _wait_until_unloaded(control: ControlClient, order: Order, revision: int, timeout_s: float) -> None:
    """Raises CommandError when the time is over; the line says which engines still hold it."""
    holding: list[str] = []
    try:
        async with asyncio.timeout(timeout_s), contextlib.aclosing(control.watch()) as statuses:
            async for status in statuses:
                if not (holding := holders(status, order, revision)):
                    return
    except TimeoutError:
        raise CommandError(
            f"revision {revision} of {order.model} withdraws it, yet after {timeout_s:.0f} s it is still held by "
            f"{', '.join(holding) or 'nobody knows whom'}: running requests finish first; look at: halogen status"
        ) from None


def holders(status: pb.Status, order: Order, revision: int) -> list[str]:
    """The engines that hold a generation of that cohort older than `revision`."""
    return [
        process.id
        for process in status.processes
        for held in process.generations
        if (held.model, held.cohort) == (order.model, order.cohort) and held.revision < revision
    ]
