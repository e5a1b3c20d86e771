"""What may happen to a real system while its weights are swapped, and how often: the simulation's moves, by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from services.cli.control_client import Means, Order
from tests.e2e.fleet import Member
from tests.e2e.streams import MODEL
from tests.e2e.swap_world import SwapWorld
from tests.simulation.moves import Picks

SETTLE_S: Final = 120.0
TOO_MANY: Final = 3  # engines, of two, that must be ready
NO_MEMORY: Final = 1e-6  # of what there is
ORDER: Final = Order(MODEL, "stable", "", who="ada", why="explore")


class Kind(NamedTuple):
    """A kind of move, and how often it comes beside the others."""

    weight: float
    make: Callable[[SwapWorld, Picks], Awaitable[None]]


def _gateway(world: SwapWorld, picks: Picks) -> Member:
    return picks.of(world.system.of("gateway"))


async def _publish(world: SwapWorld, picks: Picks) -> None:
    gateway, artifact_id = _gateway(world, picks), picks.of(world.artifacts.sound)
    order = ORDER._replace(artifact_id=artifact_id, means=Means(min_ready=picks.of((None, None, 1, 2))))
    world.order(gateway, lambda control: control.publish(order))


async def _publish_spoilt(world: SwapWorld, picks: Picks) -> None:
    order = ORDER._replace(artifact_id=world.artifacts.spoilt)
    world.order(_gateway(world, picks), lambda control: control.publish(order))


async def _ask_too_much(world: SwapWorld, picks: Picks) -> None:
    gateway, artifact_id = _gateway(world, picks), picks.of(world.artifacts.sound)
    means = Means(min_ready=TOO_MANY, timeout_ms=500)
    order = ORDER._replace(artifact_id=artifact_id, means=means)
    world.order(gateway, lambda control: control.publish(order))


async def _publish_beyond_guard(world: SwapWorld, picks: Picks) -> None:
    """It fails on engines that have to load it."""
    gateway, artifact_id = _gateway(world, picks), picks.of(world.artifacts.sound)
    order = ORDER._replace(artifact_id=artifact_id, means=Means(memory_guard_ratio=NO_MEMORY))
    world.order(gateway, lambda control: control.publish(order))


async def _roll_back(world: SwapWorld, picks: Picks) -> None:
    world.order(_gateway(world, picks), lambda control: control.roll_back(ORDER, None))


async def _abort(world: SwapWorld, picks: Picks) -> None:
    world.order(_gateway(world, picks), lambda control: control.abort(ORDER))


async def _evict(world: SwapWorld, picks: Picks) -> None:
    world.evict(picks.of(world.artifacts.sound))


async def _stop_loading(world: SwapWorld, picks: Picks) -> None:
    world.freeze(picks.of(world.system.of("loader")))


async def _load(world: SwapWorld, picks: Picks) -> None:
    world.thaw("loader")


async def _outage(world: SwapWorld, picks: Picks) -> None:
    world.freeze(world.system.members[0])


async def _recover(world: SwapWorld, picks: Picks) -> None:
    world.thaw("etcd")


async def _crash(world: SwapWorld, picks: Picks) -> None:
    world.kill(picks.of(world.system.members))


async def _ask(world: SwapWorld, picks: Picks) -> None:
    """So many more requests end, and as many others begin."""
    more = picks.of((2, 6, 12))
    ended = world.running.ended
    await world.running.until(lambda _: world.running.ended >= ended + more)


async def _settle(world: SwapWorld, picks: Picks) -> None:
    """Whatever was published has its end, unless somebody is stopped who is needed for that."""
    if world.is_free:
        await world.orders_heard()
        await world.observer.until(lambda: not world.pending, SETTLE_S)


KINDS: Final[Mapping[str, Kind]] = {
    "publish": Kind(5, _publish),
    "publish spoilt": Kind(1, _publish_spoilt),
    "publish beyond guard": Kind(1, _publish_beyond_guard),
    "ask too much": Kind(1, _ask_too_much),
    "roll back": Kind(2, _roll_back),
    "abort": Kind(1, _abort),
    "evict": Kind(2, _evict),
    "stop loading": Kind(1, _stop_loading),
    "load": Kind(2, _load),
    "outage": Kind(1.5, _outage),
    "recover": Kind(2, _recover),
    "crash": Kind(3, _crash),
    "ask": Kind(8, _ask),
    "settle": Kind(2, _settle),
}
