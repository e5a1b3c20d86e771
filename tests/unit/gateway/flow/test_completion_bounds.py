"""How much a gateway takes in at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from services.common.completion import FinishReason
from services.common.errors import Overloaded
from services.common.ids import RequestId
from services.gateway.running import Running

if TYPE_CHECKING:
    from tests.unit.gateway.flow.conftest import Flow

LENGTH = FinishReason.LENGTH


async def test_requests_over_the_bound_are_told_at_once_when_to_come_back(flow: Flow) -> None:
    """Before anything is done for them; what runs goes on, and its end makes a place.

    Fault injection: turns red when Running.admit takes any number.
    """
    flow.completions._running = Running(1)
    gate = asyncio.Event()
    flow.engines.scripts += [[gate, await flow.says("a", LENGTH)], [await flow.says("b", LENGTH)]]
    first = asyncio.ensure_future(flow.collect())
    await flow.engines.waiting.wait()
    with pytest.raises(Overloaded, match="1 requests under way") as refused:
        await flow.collect(request_id=RequestId("other"))
    assert ("TOO_MANY_REQUESTS", True) == (refused.value.reason, bool(refused.value.retry_after_s))
    assert 1 == len(flow.scheduler.asked)
    gate.set()
    assert "a" == (await first)[-1].text
    assert "b" == (await flow.collect(request_id=RequestId("other")))[-1].text
