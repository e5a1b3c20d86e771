"""What a request does whose ticket was refused: looks where it is to go now, which its gateway may not have heard yet."""

from __future__ import annotations

from typing import Final

from services.common.deadline import Deadline
from services.common.errors import HalogenError
from services.common.no_engine import NoEngine
from services.gateway.catalog import Catalog
from services.gateway.routes import Route

PATIENCE_S: Final = 1.0  # with news that engines have heard already


async def look_again(catalog: Catalog, route: Route, refusal: HalogenError, deadline: Deadline) -> None:
    """Takes in what the scheduler knows of the route, or waits a moment for the registry's word on it.

    Engines drain as soon as they hear that something newer is served; this gateway's watch may be behind, for
    milliseconds or, cut off, for seconds. Returns with the catalog as new as can be had.
    """
    told = NoEngine.told_by(refusal)
    if told.served:
        catalog.hear(route, told.served)
    elif told.is_draining and deadline.allows(PATIENCE_S):
        await catalog.moved_on(route, PATIENCE_S)
