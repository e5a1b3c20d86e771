"""What `halogen up` leaves as it is of what is published under the demo model's name."""

from __future__ import annotations

import pytest

from halogen.v1 import control_pb2 as pb
from services.cli.left_standing import OF_UP, left_standing

APPLIED, PENDING = pb.PUBLISH_STATE_APPLIED, pb.PUBLISH_STATE_PENDING
FAILED, SUPERSEDED = pb.PUBLISH_STATE_FAILED, pb.PUBLISH_STATE_SUPERSEDED
Told = tuple[str, str, pb.PublishState]  # why, artifact, how it ended


@pytest.mark.parametrize(
    ("oldest_first", "expected"),
    [
        ([], None),
        ([(OF_UP, "demo", APPLIED)], None),
        ([(OF_UP, "demo", FAILED)], None),
        ([(OF_UP, "demo", APPLIED), ("mine", "other", APPLIED)], 2),
        ([("mine", "other", APPLIED), (OF_UP, "demo", APPLIED)], None),
        ([(OF_UP, "demo", APPLIED), ("mine", "other", PENDING)], 1),
        ([(OF_UP, "demo", APPLIED), ("mine", "other", FAILED)], 1),
        ([("mine", "other", PENDING)], 1),
        ([("mine", "other", FAILED)], None),
        ([("mine", "other", SUPERSEDED), ("mine", "more", PENDING)], 2),
        ([(OF_UP, "demo", APPLIED), ("unpublished", "", APPLIED)], None),
        ([("mine", "other", APPLIED), ("unpublished", "", APPLIED), ("mine", "other", FAILED)], None),
    ],
    ids=[
        "nothing",
        "its own",
        "its own, failed",
        "an operator's",
        "its own, after",
        "served, while another is pending",
        "served, after another failed",
        "pending",
        "failed",
        "pending, after another",
        "unpublished",
        "failed, after it was unpublished",
    ],
)
def test_what_an_operator_published_stays(oldest_first: list[Told], expected: int | None) -> None:
    """What serves, or else is to serve; nothing where he took it back, or nothing came of it."""
    entries = [
        pb.HistoryEntry(
            revision=revision, why=why, artifact_id=artifact, outcome=pb.PublishOutcome(state=state)
        )
        for revision, (why, artifact, state) in enumerate(oldest_first, start=1)
    ]
    kept = left_standing(entries[::-1])
    assert expected == (kept.revision if kept else None)
