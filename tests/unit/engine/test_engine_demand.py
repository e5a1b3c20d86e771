"""What requests want of the arena, as it is scaled by."""

from __future__ import annotations

from services.common.ids import TicketId
from services.engine.arena import Arena
from services.engine.demand import Demand
from services.engine.engine import Engine
from tests.unit.engine.fakes import BLOCK_BYTES, CountingModel, Gate, generation, request


async def test_promises_and_the_largest_request_count() -> None:
    """Tickets count as schedulers count them; a request without one by its worst case, for as long as it runs.

    Fault injection: turns red when Demand.of leaves out the loans, or the tickets.
    """
    gate = Gate()
    async with Engine(Arena(64 * BLOCK_BYTES), chunk_tokens=64, max_batch=2) as engine:
        model = generation(CountingModel(gate))
        assert Demand() == Demand.of(engine)
        small, large = request("small", [1] * 16, 17), request("large", [1] * 16, 100)
        async with engine.run(model, small, TicketId("t")), engine.run(model, large):
            assert Demand(2 * BLOCK_BYTES, 0, 8 * BLOCK_BYTES) == Demand.of(engine)
            gate.open(500)
