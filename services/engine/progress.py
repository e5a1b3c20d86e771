"""How far this engine is with every model@cohort, and how its last swap went. Pure.

A swap is done when gateways route to an artifact that is ACTIVE here, and did not before; it began when this engine heard
of the publish.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import structlog

from services.common.ids import ArtifactId, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Failure
from services.common.registry.records import GenerationRecord, ProgressRecord, Serving
from services.common.registry.records import GenerationState as State
from services.engine.assignments import Assignments
from services.engine.named import Named, Pair

_REMEMBERED: Final = 8  # publishes whose beginning is known; more are never under way at a time
_NONE: Final = Revision(0)
_NOTHING: Final = Named(_NONE, None)

log = structlog.get_logger(component="state_machine")


class Moment(NamedTuple):
    """When something happened.

    Attributes:
        monotonic_s: To measure from.
        time: For others: RFC 3339, UTC.
    """

    monotonic_s: float
    time: str


class Swap(NamedTuple):
    """One that is done."""

    duration_ms: int
    time: str  # RFC 3339, UTC


class Progress:
    """Follows the registry's wishes and this engine's generations.

    Args:
        assignments: What the registry asks.
    """

    def __init__(self, assignments: Assignments) -> None:
        self._assignments = assignments
        self._paths: dict[Pair, _Path] = {}

    def note(self, records: Iterable[GenerationRecord], now: Moment) -> None:
        """Takes in how things stand; called after every change, so that none goes uncounted.

        Args:
            records: What this engine holds, of each pair in the order of the revisions.
            now: The time.
        """
        held: Mapping[Pair, list[GenerationRecord]] = collections.defaultdict(list)
        for record in records:
            held[Pair(record.model, record.cohort)].append(record)
        for pair in self._assignments.targets.keys() | self._assignments.serving.keys():
            target, served = self._named(pair)
            path = self._paths.setdefault(pair, _Path(found=served.revision))
            path.hear(max(target.revision, served.revision), now)
            path.see(held[pair])
            before = path.applied
            path.serve(served, held[pair], now)
            _tell_swap(pair, before, path)

    @property
    def records(self) -> tuple[ProgressRecord, ...]:
        """As others are told, by model and cohort."""
        return tuple(self._record(pair, path) for pair, path in sorted(self._paths.items()))

    @property
    def applied(self) -> Mapping[str, Serving]:
        """What gateways use of what is ACTIVE here, or that they use nothing, by serving/ key."""
        named = ((pair, path.applied) for pair, path in self._paths.items() if path.applied.revision)
        return {
            keys.serving(*pair): Serving(revision=it.revision, artifact_id=it.artifact_id)
            for pair, it in named
        }

    def _named(self, pair: Pair) -> tuple[Named, Named]:
        """What it shall serve, and what gateways use."""
        served = self._assignments.serving.get(pair, _NOTHING)
        return self._assignments.targets.get(pair, served), served

    def _record(self, pair: Pair, path: _Path) -> ProgressRecord:
        target, _ = self._named(pair)
        swap = path.swap
        return ProgressRecord(
            model=pair.model,
            cohort=pair.cohort,
            desired_revision=target.revision,
            actual_revision=path.actual,
            state=path.state,
            state_version=path.state_version,
            applied_sequence_id=path.applied.revision,
            expected_next_id=self._next(pair, target, path.applied.revision),
            last_swap_duration_ms=swap.duration_ms if swap else None,
            last_swap_time=swap.time if swap else "",
            last_error=path.failure or self._assignments.conflict(pair),
        )

    def _next(self, pair: Pair, target: Named, applied: Revision) -> Revision:
        """The target's while it may yet be applied, else the least that a next publish of the model can have."""
        if target.revision > applied and not target.has_failed:
            return target.revision
        known = (self._assignments.targets, self._assignments.serving)
        heard = [named.revision for each in known for of, named in each.items() if of.model == pair.model]
        return Revision(max(heard, default=0) + 1)


@dataclasses.dataclass(slots=True)
class _Path:
    """What has become of one model@cohort so far."""

    found: Revision  # what gateways used when this engine first heard of it
    applied: Named = _NOTHING
    actual: Revision = _NONE  # the latest that is ACTIVE
    state: State | None = None  # of the latest generation
    state_version: int = 0
    swap: Swap | None = None
    failure: Failure | None = None
    failed: Revision = _NONE
    heard: collections.deque[tuple[Revision, float]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_REMEMBERED)
    )

    def hear(self, revision: Revision, now: Moment) -> None:
        if not self.heard or self.heard[-1][0] < revision:
            self.heard.append((revision, now.monotonic_s))

    def see(self, held: list[GenerationRecord]) -> None:
        state = held[-1].state if held else None
        if state is not self.state:
            self.state, self.state_version = state, self.state_version + 1
        self.actual = max((each.revision for each in held if each.state is State.ACTIVE), default=_NONE)
        for each in held:
            if each.failure and each.revision > max(self.applied.revision, self.failed):
                self.failure, self.failed = each.failure, each.revision

    def serve(self, served: Named, held: list[GenerationRecord], now: Moment) -> None:
        """Only ever goes on: what serves here may be gone for a while, or be taken up again."""
        is_here = served.artifact_id is None or _is_active(served.artifact_id, held)
        if served.revision <= self.applied.revision or not is_here:
            return
        if served.artifact_id not in {None, self.applied.artifact_id}:
            self.swap = Swap(round(1000 * (now.monotonic_s - self._began_s(served.revision, now))), now.time)
        self.applied = served
        if self.failed <= served.revision:
            self.failure = None

    def _began_s(self, revision: Revision, now: Moment) -> float:
        return next((at_s for heard, at_s in self.heard if heard >= revision), now.monotonic_s)


def _tell_swap(pair: Pair, before: Named, path: _Path) -> None:
    """Gateways use something else that is ACTIVE here; what they used already when this engine came is no swap."""
    old, new = before.artifact_id or "", path.applied.artifact_id
    if new and new != old and path.applied.revision > path.found:
        told = {"seq": path.applied.revision, "model": pair.model, "cohort": pair.cohort}
        log.info("atomic_swap_commit", **told, old=old, new=new)


def _is_active(artifact_id: ArtifactId, held: Iterable[GenerationRecord]) -> bool:
    return any((each.artifact_id, each.state) == (artifact_id, State.ACTIVE) for each in held)
