"""What a scheduler tells Prometheus."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from services.common.errors import HalogenError
from services.common.metrics import PREFIX, LiveMetrics, Readings
from services.scheduler.admission import Admission
from services.scheduler.engine_instance import Contact, EngineInstance
from services.scheduler.registry_push import RegistryPush


class SchedulerMetrics:
    """Counts the answers to who asked for a ticket.

    Args:
        registry: Where they are collected.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._grants = Counter(PREFIX + "grants", "Tickets handed out.", registry=registry)
        self._refusals = Counter(
            PREFIX + "refusals",
            "Questions for a ticket that were refused, by the error's reason, or given up by who asked.",
            ("reason",),
            registry=registry,
        )

    @contextlib.contextmanager
    def question(self) -> Iterator[None]:
        """Counts one question for a ticket, however it is answered."""
        reason: str | None = "CALLER_LEFT"
        try:
            yield
            reason = None
        except HalogenError as failure:
            reason = failure.reason
            raise
        except Exception:
            reason = "INTERNAL"
            raise
        finally:
            if reason is None:
                self._grants.inc()
            else:
                self._refusals.labels(reason).inc()


_OF_ENGINE: Final[tuple[tuple[str, str, Callable[[EngineInstance], float]], ...]] = (
    ("promised_bytes", "KV bytes promised on an engine.", lambda engine: engine.ledger.promised_bytes),
    ("arena_bytes", "KV bytes that an engine has.", lambda engine: engine.ledger.arena_bytes),
    ("promised_occupancy", "Promised over arena; 1 is full.", lambda engine: engine.ledger.occupancy),
    (
        "max_concurrent_requests",
        "Most tickets that an engine takes at once; 0: as many as its memory allows.",
        lambda engine: engine.ledger.max_tickets,
    ),
    ("open_tickets", "Tickets in an engine's ledger.", lambda engine: len(engine.ledger.promises)),
    (
        "unstarted_prefill_tokens",
        "Prompt tokens granted on an engine and not yet begun.",
        lambda engine: engine.ledger.unstarted_tokens,
    ),
)


def export_live(registry: CollectorRegistry, admission: Admission) -> None:
    """Makes the queue, the ledgers and the leadership part of `registry`.

    Args:
        registry: Where they are collected.
        admission: Holds the queue and the fleet, and knows whether it leads.
    """
    live = LiveMetrics(registry)
    queue, fleet = admission.queue, admission.fleet

    live.gauge("queued_requests", "Requests that wait for a ticket.", lambda: len(queue))
    live.gauge("queued_prompt_tokens", "Prompt tokens of those that wait.", lambda: queue.prompt_tokens)
    live.gauges("engines", "Known engines, by contact.", ("contact",), lambda: _contacts(fleet))
    for name, what, read in _OF_ENGINE:
        live.gauges(name, what, ("engine",), _each(fleet, read))
    live.gauge(
        "scheduler_leads", "1 while this scheduler leads, else 0.", lambda: int(admission.term is not None)
    )
    live.gauge("scheduler_term", "Its term while it leads, else 0.", lambda: admission.term or 0)


_FINAL: Final = (("false", False), ("true", True))


def export_pushes(registry: CollectorRegistry, push: RegistryPush | None) -> None:
    """Makes what became of pushes to the registry of models part of `registry`; None where there is none."""
    LiveMetrics(registry).counters(
        "push_failures_total",
        "Tries to tell the registry of models of a commit that came to nothing; final: no other follows by itself.",
        ("final",),
        lambda: {(final,): push.failures[is_over] if push else 0 for final, is_over in _FINAL},
    )


def _each(fleet: Iterable[EngineInstance], read: Callable[[EngineInstance], float]) -> Callable[[], Readings]:
    return lambda: {(engine.id,): read(engine) for engine in fleet}


def _contacts(fleet: Iterable[EngineInstance]) -> Readings:
    counts = collections.Counter(engine.contact for engine in fleet)
    return {(contact.value,): counts[contact] for contact in Contact}
