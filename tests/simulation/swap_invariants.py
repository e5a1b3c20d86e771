"""What must hold whatever happens, in words; docs/swap-invariants.md quotes them."""

from __future__ import annotations

from typing import Final

INVARIANTS: Final = {
    "I1": "A model's revision rises by one with every publish, and a revision names one artifact for good.",
    "I2": "What a cohort serves never goes back to an older revision.",
    "I3": "At most one publish of a cohort is pending, its latest; how a publish has ended never changes.",
    "I4": "What is served, the commit's record and the publish's end change together and name the same artifact: what "
    "serves is the latest that was committed, or nothing after an unpublish.",
    "I5": "A commit names as many engines as the publish asks for, and each of them that lives has exactly that "
    "artifact ACTIVE at that moment.",
    "I6": "An engine keeps what it has heard is served, once ACTIVE, until it hears of something else, or of a publish "
    "that drains first.",
    "I7": "All tokens of a stream come from the artifact that it was routed to, out of memory that is there.",
    "I8": "A ticket is honoured until it expires, as long as its engine lives.",
    "I9": "A model is let go once, by nobody's leave but its last user's; no artifact is loaded twice at a time.",
    "I10": "An engine takes memory for an artifact, its files first, only while at most one other of its cohort has some "
    "that is not free again, and for one that drains first only once the others' is.",
    "I11": "Once faults have stopped, every publish ends.",
    "I12": "Once all has come to rest, engines and gateways hold what is served, and nothing else is in memory.",
    "I13": "What was served when a publish was accepted is kept, once ACTIVE, by an engine that hears of the publish "
    "before the commit.",
    "I14": "What is served, and failed in an engine by what may pass, is there once it has passed.",
}


class Broken(AssertionError):
    """An invariant that did not hold."""

    def __init__(self, invariant: str, seen: object) -> None:
        super().__init__(f"{invariant}: {INVARIANTS[invariant]} Seen: {seen}")
        self.invariant = invariant


def hold(invariant: str, holds: object, seen: object = "") -> None:
    """Raises Broken unless it holds."""
    if not holds:
        raise Broken(invariant, seen)
