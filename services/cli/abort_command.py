"""`halogen abort`: the end of a publish that is not served yet."""

from __future__ import annotations

import getpass
import json

from services.cli import asked_gateway
from services.cli.console import out
from services.cli.control_client import ControlClient, Order
from services.cli.options import (
    AddressOption,
    ExpectedRevisionOption,
    HomeOption,
    JsonOption,
    PublishedCohortOption,
    PublishedModelArgument,
    WhoOption,
    WhyOption,
)
from services.cli.traced import run_traced
from services.common.telemetry.attributes import COHORT, MODEL
from services.common.telemetry.tracing import span


def abort(
    model: PublishedModelArgument,
    *,
    why: WhyOption,
    cohort: PublishedCohortOption = "stable",
    who: WhoOption = "",
    expected_revision: ExpectedRevisionOption = None,
    address: AddressOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a publish that is not served yet: what is served now stays."""
    order = Order(model, cohort, "", who or getpass.getuser(), why, expected_revision)
    gateway = asked_gateway.choose(address, home)
    revision = run_traced(_abort(gateway.address, order, gateway.patience_s))
    if as_json:
        out.print(json.dumps({"model": model, "cohort": cohort, "revision": revision}), markup=False)
    else:
        out.print(f"{model}@{cohort} stays as it is served: revision {revision}", markup=False)


async def _abort(address: str, order: Order, patience_s: float) -> int:
    with span("abort", {MODEL: order.model, COHORT: order.cohort}):
        async with ControlClient(address) as control:
            await control.connect(patience_s)
            return await control.abort(order)
