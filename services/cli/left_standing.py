"""What an operator has published under the demo model's name: `halogen up`, where it was not told what to serve, leaves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from halogen.v1 import control_pb2 as pb

OF_UP: Final = "halogen up"  # why the demo model is published


def left_standing(newest_first: Sequence[pb.HistoryEntry]) -> pb.HistoryEntry | None:
    """The publish that stays, of all of one cohort; None where `up` is to publish.

    Where an operator's last publish failed or is not served yet, that is what was served before it, if anything was.
    What he took back leaves nothing that could stay.
    """
    if not newest_first or newest_first[0].why == OF_UP or not newest_first[0].artifact_id:
        return None
    newest = newest_first[0]
    applied = (each for each in newest_first if each.outcome.state == pb.PUBLISH_STATE_APPLIED)
    served = next(applied, None)
    if served is not None and served.artifact_id:
        return served
    return newest if newest.outcome.state == pb.PUBLISH_STATE_PENDING else None
