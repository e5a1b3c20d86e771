"""A system of real processes under load, whose weights are swapped while it is disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from services.cli import publish
from services.cli.console import byte_progress
from services.cli.control_client import START_S, ControlClient, Order
from services.common.errors import Conflict, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId
from services.common.registry import keys
from services.common.registry.publish_records import IntentRecord, PublishState
from services.loader.places import DEV_SHM, folder_name
from tests.e2e.fleet import Fleet, Member, fleet
from tests.e2e.registry_observer import RegistryObserver, observing
from tests.e2e.streams import MODEL, Answers, Load, load, quiet_answers

PROMPTS: Final = [f"Once there were {count} dogs and" for count in ("two", "three", "four", "nine")]
TOKENS: Final = 120
PER_GATEWAY: Final = 2
CALL_S: Final = 60.0  # no call of an operator's may take longer, whatever is away
REPLICAS: Final = {"loader": 1, "engine": 2, "scheduler": 2, "gateway": 2}
TTL: Final = ("--ticket-ttl-s", "1")
FLAGS: Final = {
    "loader": ("--live-load-bytes-per-s", str(8 << 20)),  # three blocks take more than a second
    "engine": TTL,
    "scheduler": (*TTL, "--election-ttl-s", "2"),
}
REFUSALS: Final = (Unavailable, PreconditionFailed, Conflict)  # what an operator may be told amid faults


class Artifacts(NamedTuple):
    """What a schedule publishes.

    Attributes:
        sound: Can be served; the last of them is large, so that it is slow to load.
        spoilt: READY by the registry, and not what it was since.
    """

    sound: tuple[ArtifactId, ...]
    spoilt: ArtifactId

    @property
    def all(self) -> tuple[ArtifactId, ...]:
        return (*self.sound, self.spoilt)


class SwapWorld:
    """What the moves of a schedule act on.

    Args:
        system: All processes.
        observer: Of its registry.
        artifacts: What can be published.
        pure: What each sound artifact answers, alone and in peace.

    Attributes:
        running: Requests on every gateway, without a pause, once there are any.
        killed_s: When a process was killed, by its name, for each time.
        refused: How often an operator was turned away.
    """

    def __init__(
        self,
        system: Fleet,
        observer: RegistryObserver,
        artifacts: Artifacts,
        pure: Mapping[ArtifactId, Answers],
    ) -> None:
        self.system = system
        self.observer = observer
        self.artifacts = artifacts
        self.pure = pure
        self.running = Load()
        self.killed_s: list[tuple[str, float]] = []
        self.refused = 0
        self._frozen: dict[str, int | None] = {}
        self._orders = asyncio.TaskGroup()
        self._open: list[asyncio.Task[None]] = []

    @property
    def weights(self) -> Path:
        """Where loaders put weights."""
        return DEV_SHM / folder_name(self.system.store)

    @property
    def pending(self) -> list[str]:
        """Publishes that have not ended."""
        intents = self.observer.records(keys.INTENTS, IntentRecord)
        return [key for key, each in intents.items() if each.state is PublishState.PENDING]

    @property
    def is_free(self) -> bool:
        """Whether no process is stopped."""
        return not self._frozen

    @contextlib.asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Asks without a pause while the scope lasts; all goes on at its end, and every answer is waited for."""
        asked = self.pure[self.artifacts.sound[0]]
        async with load(self.system, asked, per_gateway=PER_GATEWAY) as self.running, self._orders:
            try:
                yield
            finally:
                self.thaw()

    def order(self, gateway: Member, call: Callable[[ControlClient], Awaitable[object]]) -> None:
        """Begins to ask something of a gateway, beside what was asked before."""
        self._open.append(self._orders.create_task(self._ask(gateway, call)))

    async def orders_heard(self) -> None:
        """Returns once all that was asked has been answered, and the registry told of it."""
        if self._open:
            await asyncio.wait(self._open)
        await self.observer.catch_up()

    async def _ask(self, gateway: Member, call: Callable[[ControlClient], Awaitable[object]]) -> None:
        """The gateway may be dead or without a registry, but never silent."""
        async with asyncio.timeout(CALL_S), ControlClient(gateway.address) as control:
            try:
                await call(control)
            except REFUSALS:
                self.refused += 1

    def freeze(self, member: Member) -> None:
        """Stops it where it is."""
        if member.id not in self._frozen and member.send_if_up(signal.SIGSTOP):
            self._frozen[member.id] = member.child.pid

    def thaw(self, role: str = "") -> None:
        """Lets those of a kind go on, or all."""
        for member in self.system.members:
            if role in {"", member.role} and self._frozen.pop(member.id, None) == member.child.pid:
                member.send_if_up(signal.SIGCONT)

    def kill(self, member: Member) -> None:
        """kill -9; it is started anew."""
        if member.send_if_up(signal.SIGKILL):
            self._frozen.pop(member.id, None)
            self.killed_s.append((member.id, time.monotonic()))

    def evict(self, artifact_id: ArtifactId) -> None:
        """Takes an artifact's weights out of memory: the next load reads them from the disk."""
        for path in self.weights.glob(f"{artifact_id}*"):
            path.unlink(missing_ok=True)

    def mapped(self, engine: Member) -> set[ArtifactId]:
        """Artifacts whose weights, named or not any more, an engine maps."""
        try:
            maps = Path(f"/proc/{engine.child.pid}/maps").read_text()
        except OSError:
            return set()
        return {each for each in self.artifacts.all if re.search(each, maps)}


@contextlib.asynccontextmanager
async def swap_world(folder: Path, sound: Sequence[Path], spoilt: Path) -> AsyncIterator[SwapWorld]:
    """A system that serves the last of `sound`, for as long as the scope lasts; it leaves no weights behind."""
    async with fleet(folder, REPLICAS, FLAGS) as system, observing(system.members[0].address) as observer:
        pure = {one: answers async for one, answers in _learnt(system, sound)}
        artifacts = Artifacts(tuple(pure), await _spoil(system, spoilt))
        await system.stands()
        world = SwapWorld(system, observer, artifacts, pure)
        yield world
    assert not world.weights.exists(), "the last loader takes all away"


async def _learnt(system: Fleet, sound: Sequence[Path]) -> AsyncIterator[tuple[ArtifactId, Answers]]:
    for artifact in sound:
        published = await system.publish(MODEL, artifact)
        yield ArtifactId(published.artifact_id), await quiet_answers(system, PROMPTS, TOKENS)


async def _spoil(system: Fleet, artifact: Path) -> ArtifactId:
    """Has it registered, flips a byte of it in the store, and takes away what was made of it, in memory and on the disk."""
    order = Order(MODEL, "stable", "", who="test", why="test")
    async with ControlClient(system.gateway) as control:
        await control.connect(START_S)
        with byte_progress() as progress:
            given = await publish.register(control, order, artifact, str(system.store), progress)
    [stored] = system.store.glob(f"**/{given}/model.halogen")
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.unlink()  # it may be the artifact's own file
    stored.write_bytes(content)
    packed = (system.store.parent / "cache").rglob(f"{given}.*")
    for path in (*(DEV_SHM / folder_name(system.store)).glob(f"{given}*"), *packed):
        path.unlink()
    return ArtifactId(given)
