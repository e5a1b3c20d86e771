"""What may happen in the simulation, and how often."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from services.common.errors import CorruptData, PreconditionFailed, Unavailable
from services.common.ids import Cohort
from services.common.registry.publish_records import Strategy, SwapMode
from services.gateway.publication_plan import PublishOrder
from services.gateway.rollbacks import RollbackOrder
from tests.simulation.sim_engine import TICKET_TTL_S
from tests.simulation.sim_model import SimModel
from tests.simulation.stream import Stream
from tests.simulation.swap_invariants import Broken, hold
from tests.simulation.world import ARTIFACTS, COHORTS, MODEL, World

T = TypeVar("T")


class Picks:
    """The choices that a move leaves open, by one number, so that a schedule may be cut and still runs."""

    def __init__(self, number: int) -> None:
        self._number = number

    def of(self, choices: Sequence[T]) -> T:
        """One of them."""
        self._number, index = divmod(self._number, len(choices))
        return choices[index]


class Kind(NamedTuple):
    """A kind of move, and how often it comes beside the others."""

    weight: float
    make: Callable[[World, Picks], None]


def _publish(world: World, picks: Picks) -> None:
    if world.live_gateways:
        modes = (None, None, SwapMode.ATOMIC_SWAP, SwapMode.DRAIN_THEN_LOAD)
        strategy = Strategy(min_ready=picks.of((None, None, 1, 2)), mode=picks.of(modes))
        order = PublishOrder(MODEL, picks.of(_COHORTS), picks.of(ARTIFACTS), None, "ada", "sim", strategy)
        gateway = picks.of(world.live_gateways)
        gateway.begin(gateway.publications.publish(order))


def _unpublish(world: World, picks: Picks) -> None:
    if world.live_gateways:
        gateway = picks.of(world.live_gateways)
        order = PublishOrder(MODEL, picks.of(_COHORTS), None, None, "ada", "sim")
        gateway.begin(gateway.publications.publish(order))


def _roll_back(world: World, picks: Picks) -> None:
    if world.live_gateways:
        gateway = picks.of(world.live_gateways)
        order = RollbackOrder(MODEL, picks.of(_COHORTS), None, None, "ada", "sim")
        gateway.begin(gateway.rollbacks.roll_back(order))


def _abort(world: World, picks: Picks) -> None:
    if world.live_gateways:
        gateway = picks.of(world.live_gateways)
        order = PublishOrder(MODEL, picks.of(_COHORTS), None, None, "ada", "sim")
        gateway.begin(gateway.aborts.abort(order))


def _call(world: World, picks: Picks) -> None:
    if busy := [each for each in world.live if each.activities]:
        process = picks.of(busy)
        activity = picks.of(process.activities)
        for _ in range(picks.of((1, 2, 8))):
            if not activity.is_over:
                process.go_on(activity)


def _hear(world: World, picks: Picks) -> None:
    if behind := [each for each in world.mirrors if each.is_behind]:
        picks.of(behind).hear(picks.of((1, 3, 1_000)))


def _wake(world: World, picks: Picks) -> None:
    if world.live:
        process = picks.of(world.live)
        world.wake(process)
        if picks.of((True, False)):
            process.tell()


def _hear_all(world: World, picks: Picks) -> None:
    if world.live:
        process = picks.of(world.live)
        for mirror in process.mirrors:
            mirror.hear()
        world.wake(process)
        process.tell()


def _hear_one(world: World, picks: Picks) -> None:
    """Of what a process follows, it hears of one kind before the others."""
    if following := [each for each in world.live if each.mirrors]:
        process = picks.of(following)
        picks.of(process.mirrors).hear()
        world.wake(process)


def _tell(world: World, picks: Picks) -> None:
    if world.live:
        picks.of(world.live).tell()


def _load(world: World, picks: Picks) -> None:
    if loading := [each for each in world.live_engines if each.loads]:
        engine = picks.of(loading)
        load = picks.of(engine.loads)
        for _ in range(picks.of((1, 2, 6))):
            if not load.is_over:
                engine.bring_on(load)
                world.wake(engine)


def _fail(world: World, picks: Picks) -> None:
    if loading := [each for each in world.live_engines if each.loads]:
        engine = picks.of(loading)
        engine.fail(picks.of(engine.loads), picks.of(_FAULTS))


def _tear(world: World, picks: Picks) -> None:
    world.torn ^= {picks.of(ARTIFACTS)}


def _fill(world: World, picks: Picks) -> None:
    if world.live_engines:
        engine = picks.of(world.live_engines)
        engine.is_short = not engine.is_short


def _dispose(world: World, picks: Picks) -> None:
    if ended := [each for each in world.live_engines if each.ended]:
        picks.of(ended).dispose()


def _read(world: World, picks: Picks) -> None:
    if unread := [each for each in world.live_gateways if each.unread]:
        gateway = picks.of(unread)
        gateway.read(picks.of(gateway.unread))
        gateway.tell()


def _fail_to_read(world: World, picks: Picks) -> None:
    if unread := [each for each in world.live_gateways if each.unread]:
        gateway = picks.of(unread)
        gateway.fail_to_read(picks.of(gateway.unread))
        gateway.tell()


def _ask(world: World, picks: Picks) -> None:
    if not world.live_gateways:
        return
    gateway = picks.of(world.live_gateways)
    routes = [each for each in gateway.routes.served() if each.artifact_id in gateway.texts]
    if routes and (engines := world.active_on((route := picks.of(routes)).artifact_id)):
        engine, expires_at_s = picks.of(engines), world.now_s + TICKET_TTL_S
        world.streams += [Stream(route, engine, expires_at_s) for _ in range(picks.of((1, 4)))]


def _go_on(world: World, picks: Picks) -> None:
    if not world.streams:
        return
    stream = picks.of(world.streams)
    if stream.held is None:
        _redeem(world, stream)
    else:
        model = stream.held.model
        assert isinstance(model, SimModel)
        hold("I7", model.artifact_id == stream.route.artifact_id and model.is_here, stream.route)


def _redeem(world: World, stream: Stream) -> None:
    try:
        stream.redeem()
    except PreconditionFailed:
        world.streams.remove(stream)
        if world.now_s < stream.expires_at_s:
            raise Broken("I8", (stream.route, stream.engine.generations.residents)) from None


def _end(world: World, picks: Picks) -> None:
    if world.streams:
        stream = picks.of(world.streams)
        stream.end()
        world.streams.remove(stream)


def _pass_time(world: World, picks: Picks) -> None:
    world.now_s += picks.of((0.1, 0.5, 1.0, 6.0))


def _crash(world: World, picks: Picks) -> None:
    if world.live:
        world.crash(picks.of(world.live))


def _restart(world: World, picks: Picks) -> None:
    world.restart()


def _lose_lease(world: World, picks: Picks) -> None:
    if world.live:
        process = picks.of(world.live)
        world.registry.expire(process.lease)
        process.renew(world.lease())


def _expire(world: World, picks: Picks) -> None:
    if world.orphans:
        world.registry.expire(world.orphans.pop())


def _outage(world: World, picks: Picks) -> None:
    world.registry.is_away = True


def _recover(world: World, picks: Picks) -> None:
    world.registry.is_away = False


def _cut(world: World, picks: Picks) -> None:
    world.registry.cut = picks.of(("before", "after"))


def _compact(world: World, picks: Picks) -> None:
    world.registry.compact()


def _start_over(world: World, picks: Picks) -> None:
    if world.mirrors:
        picks.of(world.mirrors).start_over()


def _repeat(world: World, picks: Picks) -> None:
    if world.mirrors:
        picks.of(world.mirrors).repeat(picks.of((1, 3, 10)))


_COHORTS: Final = (Cohort.STABLE, Cohort.STABLE, *COHORTS)
_FAULTS: Final = (CorruptData("torn"), Unavailable("away"))
KINDS: Final = {
    "publish": Kind(2, _publish),
    "unpublish": Kind(0.2, _unpublish),
    "roll back": Kind(0.8, _roll_back),
    "abort": Kind(0.6, _abort),
    "call": Kind(24, _call),
    "hear": Kind(14, _hear),
    "wake": Kind(12, _wake),
    "hear all": Kind(26, _hear_all),
    "hear one": Kind(14, _hear_one),
    "tell": Kind(3, _tell),
    "load": Kind(20, _load),
    "fail": Kind(1.5, _fail),
    "tear": Kind(0.3, _tear),
    "fill": Kind(0.3, _fill),
    "dispose": Kind(3, _dispose),
    "read": Kind(8, _read),
    "fail to read": Kind(0.5, _fail_to_read),
    "ask": Kind(14, _ask),
    "go on": Kind(10, _go_on),
    "end": Kind(4, _end),
    "pass time": Kind(3, _pass_time),
    "crash": Kind(0.5, _crash),
    "restart": Kind(3, _restart),
    "lose lease": Kind(0.3, _lose_lease),
    "expire": Kind(0.5, _expire),
    "outage": Kind(0.3, _outage),
    "recover": Kind(3, _recover),
    "cut": Kind(0.4, _cut),
    "compact": Kind(0.4, _compact),
    "start over": Kind(0.5, _start_over),
    "repeat": Kind(0.5, _repeat),
}
