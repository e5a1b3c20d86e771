"""What the engines that are there offer to artifacts: asked before one is verified or published."""

from __future__ import annotations

from collections.abc import Mapping

from services.common.checkpoint.requirements import Offer, Requirements, refusal
from services.common.registry.records import EngineRecord, OfferRecord


class EngineOffers:
    """Compares what an artifact requires with every engine.

    Args:
        engines: The mirror of engines/.
    """

    def __init__(self, engines: Mapping[str, EngineRecord]) -> None:
        self._engines = engines

    @property
    def all_pack(self) -> bool:
        """Whether there are engines, and none of them uses bf16 weights as they are stored."""
        return bool(self._engines) and all(each.offer and each.offer.packs for each in self._engines.values())

    def check(self, requires: Requirements) -> None:
        """Returns if an engine can serve it, or if none is there to say: each asks for itself when it comes.

        Raises:
            PreconditionFailed: None of them can; the message tells what the one lacks that lacks least.
        """
        offers = [_offer(engine.offer) for engine in self._engines.values() if engine.offer]
        lacking = [requires.unmet(offer) for offer in offers]
        if lacking and all(lacking):
            least = min(lacking, key=len)
            raise refusal(least, " by any engine that is there")


def _offer(record: OfferRecord) -> Offer:
    return Offer(
        runtime=record.runtime,
        device_class=record.device_class,
        precisions=frozenset(record.precisions),
        input_schemas=frozenset(record.input_schemas),
    )
