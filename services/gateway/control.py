"""What operators do, on one registry: make artifacts known, name what a cohort shall serve, say what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.signatures import ANYBODY, TrustedKeys
from services.common.ids import ModelName, Revision
from services.common.registry.records import SchedulerRecord
from services.common.registry.store import Store
from services.gateway.aborts import Aborts
from services.gateway.artifacts import Artifacts, Verify
from services.gateway.publications import Publications
from services.gateway.pushes import Pushes
from services.gateway.qualifications import Qualifications
from services.gateway.rollbacks import Rollbacks


class Control(NamedTuple):
    """The parts of ControlService that write."""

    artifacts: Artifacts
    publications: Publications
    qualifications: Qualifications
    rollbacks: Rollbacks
    aborts: Aborts
    pushes: Pushes

    @classmethod
    def on(
        cls,
        store: Store,
        verify: Verify,
        *,
        known: Callable[[ModelName], Revision] = lambda _: Revision(0),
        check_plan: Callable[[Requirements], None] = lambda _: None,
        trust: TrustedKeys = ANYBODY,
        leader: Callable[[], SchedulerRecord | None] = lambda: None,
    ) -> Self:
        """Wires them; see `Artifacts`, `Publications` and `Pushes` for the arguments."""
        publications = Publications(store, known, check_plan, trust)
        return cls(
            artifacts=Artifacts(store, verify, check_plan, trust),
            publications=publications,
            qualifications=Qualifications(store),
            rollbacks=Rollbacks(store, publications),
            aborts=Aborts(store, publications),
            pushes=Pushes(store, leader),
        )
