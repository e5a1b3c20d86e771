"""How an engine takes an artifact into service: what its publishes say, over what the engine has. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from services.common.registry.publish_records import Strategy, SwapMode


class SwapPolicy(NamedTuple):
    """All that there is to know.

    Attributes:
        mode: Whether it is loaded beside what serves, or once that is gone.
        timeout_s: From ALLOCATING to ACTIVE.
        fallback_on_failure: Whether what was let go for it is loaded again when it fails.
        memory_guard_ratio: The part of the memory that it may fill, above 0 and at most 1.
    """

    mode: SwapMode
    timeout_s: float
    fallback_on_failure: bool
    memory_guard_ratio: float

    def under(self, strategy: Strategy) -> SwapPolicy:
        """This one, but for what a publish says."""
        own_ms, falls_back = strategy.timeout_ms, strategy.fallback_on_failure
        return SwapPolicy(
            mode=strategy.mode or self.mode,
            timeout_s=self.timeout_s if own_ms is None else own_ms / 1000,
            fallback_on_failure=self.fallback_on_failure if falls_back is None else falls_back,
            memory_guard_ratio=strategy.memory_guard_ratio or self.memory_guard_ratio,
        )

    def once_served(self, own: SwapPolicy) -> SwapPolicy:
        """This one, for what gateways route to: publishes bound their swaps, not an engine that comes back to it."""
        return self._replace(
            timeout_s=max(self.timeout_s, own.timeout_s), memory_guard_ratio=own.memory_guard_ratio
        )


def together(policies: Collection[SwapPolicy]) -> SwapPolicy:
    """Of an artifact that several publishes name: the most generous of each, but the smallest part of the memory.

    What drains for it is each publish's own affair: `MakingWay`.
    """
    drains = any(policy.mode is SwapMode.DRAIN_THEN_LOAD for policy in policies)
    return SwapPolicy(
        mode=SwapMode.DRAIN_THEN_LOAD if drains else SwapMode.ATOMIC_SWAP,
        timeout_s=max(policy.timeout_s for policy in policies),
        fallback_on_failure=any(policy.fallback_on_failure for policy in policies),
        memory_guard_ratio=min(policy.memory_guard_ratio for policy in policies),
    )
