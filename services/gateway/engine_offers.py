"""What the engines that are there offer to artifacts: asked before one is verified or published."""

from __future__ import annotations

from collections.abc import Mapping

from services.common.checkpoint.kernel_layout import KernelLayout
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
    def layouts(self) -> frozenset[KernelLayout | None]:
        """How the engines that are there want weights to lie; None among them: as they are stored."""
        offers = [engine.offer for engine in self._engines.values()]
        return frozenset(KernelLayout.parse(offer.layout) if offer else None for offer in offers)

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
