"""Which engine takes a request: filter, score, pick."""

from __future__ import annotations

from services.common.registry.records import GenerationState
from services.common.watermark import Level
from services.scheduler.engine_instance import Contact, EngineInstance
from services.scheduler.fleet import Fleet
from services.scheduler.placement import place
from services.scheduler.request import TicketRequest
from tests.unit.scheduler.builders import (
    ARTIFACT,
    BOUNDS,
    OTHER,
    blocks,
    engine,
    engine_record,
    live,
    request,
    resident,
)


def chosen(fleet: Fleet, wanted: TicketRequest, unstarted_tokens: int = 4096) -> EngineInstance | None:
    placement = place(wanted, fleet, unstarted_tokens)
    return placement.engine if placement else None


def test_the_worst_case_is_reserved_in_whole_blocks() -> None:
    """17 tokens of prompt and 16 to come store 32: two blocks of 100 bytes; one more token is a third."""
    fleet = Fleet(BOUNDS)
    engine(fleet)
    reserved = [
        placement.reserved_bytes for n in (16, 17) if (placement := place(request(17, n), fleet, 4096))
    ]
    assert [200, 300] == reserved


def test_only_engines_with_the_artifact_active_are_asked() -> None:
    """Another artifact, or the same one still warming or draining, is no place."""
    fleet = Fleet(BOUNDS)
    engine(fleet, "other", residents=[resident(OTHER)])
    engine(fleet, "warming", residents=[resident(ARTIFACT, GenerationState.WARMING)])
    engine(fleet, "draining", residents=[resident(ARTIFACT, GenerationState.DRAINING)])
    assert chosen(fleet, request()) is None
    active = engine(fleet, "active", residents=[resident(OTHER), resident()])
    assert active is chosen(fleet, request())


def test_an_artifact_of_two_cohorts_counts_when_either_is_active() -> None:
    """The same artifact may drain for one cohort and be active for another."""
    fleet = Fleet(BOUNDS)
    both = engine(fleet, residents=[resident(), resident(ARTIFACT, GenerationState.DRAINING)])
    assert both is chosen(fleet, request())


def test_only_engines_whose_word_is_at_hand_are_asked() -> None:
    """Before its snapshot, and while its stream is broken, nothing is granted on an engine."""
    fleet = Fleet(BOUNDS)
    fleet.arrive(engine_record("unheard"))
    silent = engine(fleet, "silent")
    silent.advance(Contact.SILENT)
    assert chosen(fleet, request()) is None


def test_a_request_must_fit_beside_what_is_promised() -> None:
    """Promised bytes and the request's together stay within the arena."""
    fleet = Fleet(BOUNDS)
    engine(fleet, blocks=100, tickets=[live("x", 60, started=True)])
    assert chosen(fleet, blocks(40)) is not None
    assert chosen(fleet, blocks(41)) is None


def test_the_least_occupied_engine_wins_and_ties_go_by_name() -> None:
    """Occupancy is a share of the engine's own arena."""
    fleet = Fleet(BOUNDS)
    engine(fleet, "a", blocks=100, tickets=[live("x", 50, started=True)])
    least = engine(fleet, "c", blocks=1000, tickets=[live("x", 100, started=True)])
    assert least is chosen(fleet, request())
    tied = engine(fleet, "b", blocks=10, tickets=[live("x", 1, started=True)])
    assert tied is chosen(fleet, request())


def test_a_stale_engine_comes_last() -> None:
    """An engine without a lease is used when there is no other."""
    fleet = Fleet(BOUNDS)
    stale = engine(fleet, "a")
    stale.is_stale = True
    assert stale is chosen(fleet, request())
    fresh = engine(fleet, "b", tickets=[live("x", 50, started=True)])
    assert fresh is chosen(fleet, request())


def test_unstarted_prefill_is_bounded() -> None:
    """Granted, not yet begun prompts may reach the bound and not pass it."""
    fleet = Fleet(BOUNDS)
    engine(fleet, blocks=1000, tickets=[live("x", prompt_tokens=60)])
    assert chosen(fleet, request(40), 100) is not None
    assert chosen(fleet, request(41), 100) is None


def test_a_single_prompt_longer_than_the_bound_goes_alone() -> None:
    """With nothing unstarted, any prompt may begin."""
    fleet = Fleet(BOUNDS)
    engine(fleet, blocks=1000, tickets=[live("x", started=True)])
    assert chosen(fleet, request(500), 100) is not None


def test_above_the_soft_watermark_half_is_allowed() -> None:
    """From 0.75 on, half of the usual unstarted prefill."""
    fleet = Fleet(BOUNDS)
    soft = engine(fleet, tickets=[live("x", 75, started=True), live("y", 1, prompt_tokens=20)])
    assert Level.SOFT is soft.level
    assert chosen(fleet, request(30), 100) is not None
    assert chosen(fleet, request(31), 100) is None


def test_above_the_hard_watermark_nothing_is_allowed() -> None:
    """From 0.90 on the arena's last tenth is left to what runs."""
    fleet = Fleet(BOUNDS)
    hard = engine(fleet, tickets=[live("x", 91, started=True)])
    assert Level.HARD is hard.level
    assert chosen(fleet, request(1, 1)) is None


def test_an_idle_engine_takes_whatever_fits_its_arena() -> None:
    """Without any ticket neither watermark nor bound stands in the way of a single request."""
    fleet = Fleet(BOUNDS)
    engine(fleet, blocks=100)
    assert chosen(fleet, blocks(100, prompt_tokens=1000), 100) is not None
    assert chosen(fleet, blocks(101, prompt_tokens=1000), 100) is None


def test_the_context_bounds_prompt_and_answer_together() -> None:
    """An engine whose context is too short is no place."""
    fleet = Fleet(BOUNDS)
    engine(fleet, residents=[resident(context=100)])
    assert chosen(fleet, request(60, 40)) is not None
    assert chosen(fleet, request(60, 41)) is None
