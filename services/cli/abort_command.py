"""`halogen abort`: the end of a publish that is not served yet."""

from __future__ import annotations

import json

from services.cli.asked_gateway import AskedGateway
from services.cli.console import out
from services.cli.control_client import ControlClient, Order
from services.cli.gateway_option import gateway_option
from services.cli.operator_name import operator_name
from services.cli.options import (
    ExpectedRevisionOption,
    JsonOption,
    PublishedCohortOption,
    PublishedModelArgument,
    WhoOption,
    WhyOption,
)
from services.cli.traced import run_traced
from services.common.ids import Cohort
from services.common.rpc.endpoint import Peer
from services.common.telemetry.attributes import COHORT, MODEL
from services.common.telemetry.tracing import span


@gateway_option
def abort(
    model: PublishedModelArgument,
    *,
    gateway: AskedGateway,
    why: WhyOption,
    cohort: PublishedCohortOption = Cohort.STABLE,
    who: WhoOption = "",
    expected_revision: ExpectedRevisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a publish that is not served yet: what is served now stays."""
    order = Order(model, cohort, "", who or operator_name(), why, expected_revision)
    revision = run_traced(_abort(gateway.endpoint, order, gateway.patience_s))
    if as_json:
        out.print(json.dumps({"model": model, "cohort": cohort, "revision": revision}))
    else:
        out.print(f"{model}@{cohort} stays as it is served: revision {revision}")


async def _abort(gateway: Peer, order: Order, patience_s: float) -> int:
    with span("abort", {MODEL: order.model, COHORT: order.cohort}):
        async with ControlClient(gateway) as control:
            await control.connect(patience_s)
            return await control.abort(order)
