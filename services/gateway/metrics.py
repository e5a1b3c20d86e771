"""What a gateway tells Prometheus."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.common.errors import HalogenError
from services.common.metrics import (
    FIRST_TOKEN_S,
    PREFIX,
    REQUEST_S,
    REQUEST_TOKENS,
    TOKEN_S,
    UNKNOWN,
    LiveMetrics,
    Readings,
    short,
)
from services.common.registry import keys
from services.common.registry.records import Serving, Target
from services.gateway.answer import Answer
from services.gateway.finish_reason import REJECTED

_MODEL: Final = ("model", "cohort")


class GatewayMetrics:
    """Counts requests and observes their stages; each accepted one ends in exactly one terminal count.

    Args:
        registry: Where they are collected.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, what: str, buckets: Collection[float]) -> Histogram:
            return Histogram(PREFIX + name, what, _MODEL, buckets=tuple(buckets), registry=registry)

        self._accepted = Counter(
            PREFIX + "requests_accepted", "Requests that were taken in.", registry=registry
        )
        self._ended = Counter(
            PREFIX + "requests",
            "Accepted requests that have ended, by how.",
            (*_MODEL, "finish_reason"),
            registry=registry,
        )
        self._rejections = Counter(
            PREFIX + "rejections",
            "Requests turned away without a token, accepted or not, by the error's reason.",
            ("reason",),
            registry=registry,
        )
        self._first_token = histogram(
            "time_to_first_token_seconds", "From acceptance to the first token.", FIRST_TOKEN_S
        )
        self._per_token = histogram(
            "time_per_output_token_seconds", "Between tokens, after the first.", TOKEN_S
        )
        self._gaps_of = functools.cache(lambda model: self._per_token.labels(*model))  # once for every token
        self._latency = histogram("e2e_request_latency_seconds", "From acceptance to the end.", REQUEST_S)
        self._queue = histogram("request_queue_time_seconds", "Waiting for a ticket.", REQUEST_S)
        self._prefill = histogram(
            "request_prefill_time_seconds", "From the ticket to the first token.", REQUEST_S
        )
        self._decode = histogram(
            "request_decode_time_seconds", "From the first token to the last.", REQUEST_S
        )
        self._prompt = histogram("request_prompt_tokens", "Tokens of the prompt.", REQUEST_TOKENS)
        self._generated = histogram("request_generation_tokens", "Tokens given out.", REQUEST_TOKENS)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Counts what is turned away before it is accepted."""
        try:
            yield
        except HalogenError as failure:
            self._rejections.labels(failure.reason).inc()
            raise

    def accept(self) -> None:
        """One more request is taken in; one `end` follows."""
        self._accepted.inc()

    def token_gap(self, answer: Answer, gap_s: float) -> None:
        """So much time lay between one token and the next."""
        self._gaps_of(_model(answer)).observe(gap_s)

    def end(self, answer: Answer, finish_reason: str, failure: BaseException | None, now_s: float) -> None:
        """An accepted request has ended; everything about it is observed here, once.

        Args:
            answer: As far as it has come.
            finish_reason: As `finish_reason.of` says.
            failure: What it ended with, if not with an answer.
            now_s: Monotonic.
        """
        model, times, usage = _model(answer), answer.times, answer.usage
        self._ended.labels(*model, finish_reason).inc()
        if finish_reason == REJECTED and isinstance(failure, HalogenError):
            self._rejections.labels(failure.reason).inc()
        for histogram, value in (
            (self._latency, times.elapsed_s(now_s)),
            (self._prompt, usage.prompt_tokens),
            (self._generated, usage.completion_tokens),
            (self._first_token, times.first_token_s),
            (self._queue, times.queue_s),
            (self._prefill, times.prefill_s),
            (self._decode, times.decode_s),
        ):
            if value is not None:
                histogram.labels(*model).observe(value)


def export_live(
    registry: CollectorRegistry,
    *,
    in_flight: Callable[[], int],
    targets: Mapping[str, Target],
    serving: Mapping[str, Serving],
) -> None:
    """Makes what the gateway holds and knows part of `registry`."""
    live = LiveMetrics(registry)
    live.gauge("requests_in_flight", "Accepted requests that have not ended.", in_flight)
    live.gauges("desired_revision", "What a cohort shall serve.", _MODEL, lambda: _revisions(targets))
    live.gauges(
        "serving_revision",
        "What requests are routed to; 0 before the first is served.",
        _MODEL,
        lambda: {**dict.fromkeys(_revisions(targets), 0), **_revisions(serving)},
    )
    live.gauges(
        "serving_info",
        "The artifact that requests of a cohort are routed to.",
        (*_MODEL, "artifact", "revision"),
        lambda: {
            (*keys.split_cohort_key(key), short(record.artifact_id), str(record.revision)): 1
            for key, record in serving.items()
            if record.artifact_id is not None
        },
    )


def _revisions(records: Mapping[str, Serving] | Mapping[str, Target]) -> Readings:
    return {tuple(keys.split_cohort_key(key)): record.revision for key, record in records.items()}


def _model(answer: Answer) -> tuple[str, str]:
    """Only what was served is named: callers can make up any number of models."""
    provenance = answer.provenance
    return (provenance.model, provenance.cohort) if provenance else (UNKNOWN, UNKNOWN)
