"""A gateway of the simulation: what it routes to, whose text it has, and what operators ask of it."""

from __future__ import annotations

from typing import Final

from services.common.backoff import Backoff
from services.common.checkpoint.signatures import TrustedKeys
from services.common.ids import ArtifactId, InstanceId, ModelName, ProcessId, Revision
from services.common.registry import keys
from services.common.registry.records import GatewayRecord, Serving, Target, TextFailure
from services.common.registry.store import LeaseId
from services.gateway.aborts import Aborts
from services.gateway.publications import Publications
from services.gateway.rollbacks import Rollbacks
from services.gateway.routes import Routes
from tests.simulation.mirror import Mirror
from tests.simulation.sim_process import SimProcess
from tests.simulation.sim_registry import SimRegistry

_TORN: Final = "tokenizer.json is no tokenizer"


class _AtOnce(Backoff):
    """Time is the schedule's."""

    async def pause(self) -> None:
        pass


class SimGateway(SimProcess):
    """Has texts as `Catalog` has them; publishes by the product's own classes.

    Args:
        registry: What it follows.
        number: Which gateway it is, of those that there are.
        lease: Under which its record is.

    Attributes:
        texts: Artifacts whose text it has.
    """

    def __init__(self, registry: SimRegistry, number: int, lease: LeaseId) -> None:
        super().__init__(registry, lease)
        self.id = ProcessId(f"gateway-{number}")
        targets = Mirror(registry, keys.TARGETS, Target, keeps=True)
        serving = Mirror(registry, keys.SERVING, Serving, keeps=True)
        self.mirrors = (targets, serving)
        self.routes = Routes(serving.records, targets.records)
        self.texts: set[ArtifactId] = set()
        self._failures: dict[ArtifactId, tuple[TextFailure, ...]] = {}

    @property
    def publications(self) -> Publications:
        """Its own for each order: none waits for another's turn, so that they come between each other."""
        return Publications(self.registry, _nothing_known, lambda _: None, TrustedKeys(), _AtOnce)

    @property
    def rollbacks(self) -> Rollbacks:
        return Rollbacks(self.registry, self.publications)

    @property
    def aborts(self) -> Aborts:
        return Aborts(self.registry, self.publications)

    def wake(self, now_s: float) -> None:
        """Forgets what is named no more."""
        named = self.routes.artifact_ids()
        self.texts &= named
        self._failures = {each: told for each, told in self._failures.items() if each in named}

    @property
    def unread(self) -> list[ArtifactId]:
        """Artifacts that are named and whose text it has not."""
        return sorted(self.routes.artifact_ids() - self.texts)

    def read(self, artifact_id: ArtifactId) -> None:
        """It gets the text of one."""
        self.texts.add(artifact_id)
        self._failures.pop(artifact_id, None)

    def fail_to_read(self, artifact_id: ArtifactId) -> None:
        """It cannot use the text of one, for all who name it now."""
        self._failures[artifact_id] = tuple(
            TextFailure(**route._asdict(), error=_TORN) for route in sorted(self.routes.to(artifact_id))
        )

    @property
    def record(self) -> GatewayRecord:
        return GatewayRecord(
            id=self.id,
            instance_id=InstanceId(f"{self.id}-{self.lease}"),
            address="x:1",
            host="h",
            start_time="2026-01-01T00:00:00+00:00",
            artifact_ids=tuple(sorted(self.texts)),
            text_failures=tuple(each for _, told in sorted(self._failures.items()) for each in told),
        )

    @property
    def key(self) -> str:
        return keys.gateway(self.id)


def _nothing_known(_: ModelName) -> Revision:
    return Revision(0)
