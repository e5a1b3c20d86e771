"""What an engine says of its generations, and what a scheduler makes of it."""

from __future__ import annotations

from halogen.v1 import engine_pb2 as pb
from services.engine.occupancy import Delta as Told
from services.engine.servicer import _delta as told
from services.scheduler.occupancy import Delta
from services.scheduler.occupancy_client import _event as heard
from tests.unit.scheduler.builders import ARTIFACT, admission, engine


def over_the_wire(message: pb.OccupancyDelta) -> Delta:
    event = heard(pb.WatchOccupancyResponse(delta=pb.OccupancyDelta.FromString(message.SerializeToString())))
    assert isinstance(event, Delta)
    return event


def test_an_engine_whose_last_generation_is_gone_is_asked_for_nothing() -> None:
    """No generations is not "as before": what it had is forgotten, also when all that came between came as one.

    Fault injection: turns red when `_delta` does not say that generations have changed, or `EngineInstance.follow` takes
    none for no change.
    """
    instance = engine(admission().fleet)
    instance.follow(over_the_wire(told(Told((), (), None))))
    assert instance.resident(ARTIFACT)
    assert instance.may_serve(ARTIFACT)
    instance.follow(over_the_wire(told(Told((), (), ()))))
    assert instance.resident(ARTIFACT) is None
    assert not instance.may_serve(ARTIFACT)


def test_an_older_engine_tells_generations_alone() -> None:
    """Those that it gives are all there are; where it gives none nothing is known to have changed."""
    assert over_the_wire(pb.OccupancyDelta()).residents is None
    given = over_the_wire(
        pb.OccupancyDelta(
            generations=[pb.ResidentGeneration(artifact_id=ARTIFACT, state="GENERATION_STATE_FETCHING")]
        )
    )
    assert given.residents is not None
    assert [ARTIFACT] == [each.artifact_id for each in given.residents]
