"""Where a request goes while its gateway is behind: with the text of what is served, or, when its ticket was refused, with
the news of what is served now.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from services.common.deadline import Deadline
from services.common.errors import HalogenError, Unavailable
from services.common.ids import Cohort, ModelName
from services.common.no_engine import NoEngine
from services.gateway.catalog import TOKENIZER_LOADING, Catalog, Routed
from services.gateway.routes import Route

PATIENCE_S: Final = 1.0  # with news that engines have heard already
TEXT_PATIENCE_S: Final = 10.0  # with a tokenizer that is being loaded


async def find(catalog: Catalog, model: ModelName, cohort: Cohort | None, deadline: Deadline) -> Routed:
    """Where a request goes; waits for a tokenizer that is being loaded, as long as the deadline and TEXT_PATIENCE_S allow.

    Raises:
        HalogenError: As `Catalog.route` says.
    """
    left_s, patience_s = deadline.remaining_s(), TEXT_PATIENCE_S
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s if left_s is None else min(left_s, patience_s)):
            async with contextlib.aclosing(catalog.changes()) as changes:
                async for _ in changes:
                    try:
                        return catalog.route(model, cohort)
                    except Unavailable as failure:
                        if failure.reason != TOKENIZER_LOADING:
                            raise
    return catalog.route(model, cohort)


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
