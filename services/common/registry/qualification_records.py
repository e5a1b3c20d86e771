"""What artifacts are on builds of engines, as the registry has it."""

from __future__ import annotations

from services.common.registry.record import Record


class ProbeResult(Record):
    """How a test that an engine makes of itself ended."""

    name: str
    passed: bool
    detail: str = ""


class Statement(Record):
    """What an operator said of an artifact on a build; what it leaves out stands as it was said before."""

    time: str  # RFC 3339, UTC
    who: str
    why: str
    approved: bool | None = None
    accuracy: float | None = None
    git_commit: str = ""
    data_set: str = ""


class QualificationRecord(Record):
    """qualifications/{artifact_id}/{build}: what an artifact is on one build, and what was said of it there.

    The build is the root over all five parts of the graph hash; kernels and device are the factors of the last two.
    Made by the first engine that has the artifact ACTIVE, added to by ControlService; statements are append-only.
    """

    runtime_build: str
    graph_root: str
    kernels: dict[str, bool | int | float | str]
    device: dict[str, bool | int | float | str]
    probes: tuple[ProbeResult, ...] = ()
    statements: tuple[Statement, ...] = ()

    @property
    def approved(self) -> bool | None:
        return next((each.approved for each in reversed(self.statements) if each.approved is not None), None)

    @property
    def accuracy(self) -> float | None:
        return next((each.accuracy for each in reversed(self.statements) if each.accuracy is not None), None)

    @property
    def git_commit(self) -> str:
        return next((each.git_commit for each in reversed(self.statements) if each.git_commit), "")

    @property
    def data_set(self) -> str:
        return next((each.data_set for each in reversed(self.statements) if each.data_set), "")
