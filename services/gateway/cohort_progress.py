"""How far a model@cohort is, and how its last swap went, by what its engines tell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.common.ids import Revision
from services.common.registry.publish_records import Failure, PublishState
from services.common.registry.records import ProgressRecord, Serving, Target


class CohortProgress(NamedTuple):
    """What a status shows of it.

    Attributes:
        applied: The revision that gateways use; 0: none yet.
        expected_next: The one that comes next: the target's while that is PENDING, else the least that the model's
            next publish can have.
        last_swap: The progress of the engine that was the last to swap; None: none has, or none tells.
        last_error: Of the first engine that has failed at what it is to apply next.
    """

    applied: Revision
    expected_next: Revision
    last_swap: ProgressRecord | None
    last_error: Failure | None

    @classmethod
    def of(
        cls,
        target: Target,
        state: PublishState,
        *,
        serving: Serving | None,
        last: Revision,
        engines: Sequence[ProgressRecord],
    ) -> CohortProgress:
        """Reads it off the registry's records.

        Args:
            target: The cohort's.
            state: How that stands.
            serving: The cohort's.
            last: The model's last revision.
            engines: What engines tell of the cohort.
        """
        swapped = [each for each in engines if each.last_swap_duration_ms is not None]
        return cls(
            applied=serving.revision if serving else Revision(0),
            expected_next=target.revision if state is PublishState.PENDING else Revision(last + 1),
            last_swap=max(swapped, key=lambda each: each.last_swap_time, default=None),
            last_error=next((each.last_error for each in engines if each.last_error), None),
        )
