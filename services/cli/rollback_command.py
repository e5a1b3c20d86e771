"""`halogen rollback`: back to what was served before."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from services.cli.asked_gateway import AskedGateway
from services.cli.console import err, out
from services.cli.control_client import ControlClient, Means, Order
from services.cli.gateway_option import gateway_option
from services.cli.operator_name import operator_name
from services.cli.options import (
    MAX_REVISION,
    ExpectedRevisionOption,
    FallbackOption,
    JsonOption,
    MemoryGuardRatioOption,
    MinReadyOption,
    PublishedCohortOption,
    PublishedModelArgument,
    StrategyOption,
    TimeoutMsOption,
    WaitServedOption,
    WhoOption,
    WhyOption,
)
from services.cli.publish import wait_until_serving
from services.cli.published import Published
from services.cli.traced import run_traced
from services.common.ids import Cohort
from services.common.rpc.endpoint import Peer
from services.common.telemetry.attributes import COHORT, MODEL
from services.common.telemetry.tracing import span

ToRevisionOption = Annotated[
    int | None,
    typer.Option(
        "--to",
        min=1,
        max=MAX_REVISION,
        help="A revision that was served; the last of another artifact when left out.",
    ),
]


@gateway_option
def rollback(
    model: PublishedModelArgument,
    *,
    gateway: AskedGateway,
    why: WhyOption,
    to: ToRevisionOption = None,
    cohort: PublishedCohortOption = Cohort.STABLE,
    who: WhoOption = "",
    expected_revision: ExpectedRevisionOption = None,
    strategy: StrategyOption = None,
    min_ready: MinReadyOption = None,
    timeout_ms: TimeoutMsOption = None,
    fallback_on_failure: FallbackOption = None,
    memory_guard_ratio: MemoryGuardRatioOption = None,
    wait: WaitServedOption = 300,
    as_json: JsonOption = False,
) -> None:
    """Serve again what was served before, under a new revision; at once, where engines still hold it."""
    means = Means(strategy, min_ready, timeout_ms, fallback_on_failure, memory_guard_ratio)
    order = Order(model, cohort, "", who or operator_name(), why, expected_revision, means)
    published = run_traced(roll_back(gateway.endpoint, order, to, wait_s=wait, patience_s=gateway.patience_s))
    if as_json:
        out.print(json.dumps(published._asdict()))
    else:
        state = "is served" if wait else "is published"
        line = f"revision {published.revision} of {model}@{cohort} {state}: artifact {published.artifact_id}"
        out.print(line)


async def roll_back(
    gateway: Peer, order: Order, to_revision: int | None, *, wait_s: float, patience_s: float
) -> Published:
    """Names it; waits until it is served unless `wait_s` is 0.

    Raises:
        HalogenError: The gateway refuses, or none answers within `patience_s` seconds.
        CommandError: It cannot be served; the line says why.
    """
    with span("rollback", {MODEL: order.model, COHORT: order.cohort}):
        async with ControlClient(gateway) as control:
            await control.connect(patience_s)
            done = await control.roll_back(order, to_revision)
            published = Published(order.model, order.cohort, done.artifact_id, done.revision)
            if wait_s:
                with err.status("waiting for the engines and the gateways"):
                    published = await wait_until_serving(control, published, wait_s)
            return published
