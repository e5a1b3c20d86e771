"""What the metrics of all processes have in common: a registry of their own, live readings, buckets.

Names begin with ``halogen_``; meanings and buckets are those that vLLM's users know. Labels are bounded: the models
and cohorts that are served, reasons of ours, never an id of a request. What a model@cohort is made of (artifact,
revision, build) stands in ``*_info`` series of value 1, which vanish with what they name; join them by model and
cohort.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import prometheus_client
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.common.ids import ArtifactId
from services.common.registry.contact import RegistryContact
from services.common.release import release
from services.common.rpc.server import RpcServer

PREFIX: Final = "halogen_"
UNKNOWN: Final = "unknown"  # the model of a request that was never routed
FIRST_TOKEN_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
REQUEST_TOKENS: Final = tuple(mantissa * 10**power for power in range(6) for mantissa in (1, 2, 5))

Labels = tuple[str, ...]
Readings = Mapping[Any, float]  # by labels: a tuple of texts, as many as there are names

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter


def version() -> str:
    """Which release this is: ``halogen/0.1.0``."""
    return f"halogen/{release()}"


def short(artifact_id: ArtifactId) -> str:
    """An artifact's id as a label: its beginning, as the command line shows it."""
    return artifact_id[:12]


def fresh_registry(role: str, build: str, server: RpcServer, contact: RegistryContact) -> CollectorRegistry:
    """A registry for one process: what the system knows of it, and what every process of ours tells.

    Args:
        role: "gateway", ...
        build: What runs, for example ``halogen/0.1.0``.
        server: The process's.
        contact: The process's, with the registry of facts.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    live, ours = LiveMetrics(registry), ("role",)
    live.gauges("build_info", "Which build this is.", ("role", "build"), lambda: {(role, build): 1})
    live.gauges(
        "ready", "1 while it can do its work, else 0.", ours, lambda: {(role,): server.readiness.ready}
    )
    live.gauges(
        "registry_stale",
        "1 while what it knows of the registry may be out of date, else 0.",
        ours,
        lambda: {(role,): bool(contact.stale)},
    )
    _export_calls(live, role, server)
    return registry


def _export_calls(live: LiveMetrics, role: str, server: RpcServer) -> None:
    """Who calls, and who is not let in."""
    ours = ("role",)
    in_flight, callers, tls = server.in_flight, server.door.callers, server.door.tls
    expires_s = tls.own.expires.timestamp() if tls else None
    live.gauges("calls_in_flight", "Calls under way, no watches.", ours, lambda: {(role,): in_flight.count})
    live.counters(
        "calls_refused_total",
        "Calls that came too late: it is stopping.",
        ours,
        lambda: {(role,): in_flight.refused},
    )
    live.counters(
        "callers_refused_total",
        "Calls that were not let in, by what was wrong with the credential.",
        ("role", "reason"),
        lambda: {(role, reason): count for reason, count in server.refusals.counts.items()},
    )
    live.gauges(
        "callers_file_refused",
        "1 while the file of callers cannot be taken as it is, and what it said before holds, else 0.",
        ours,
        lambda: {(role,): callers is not None and not callers.is_taken},
    )
    live.gauges(
        "certificate_expiry_timestamp_seconds",
        "When the certificate that it was started with expires; none without TLS.",
        ours,
        lambda: {(role,): expires_s} if expires_s is not None else {},
    )


def snapshot(registry: CollectorRegistry) -> CollectorRegistry:
    """Everything as it stands now, to be written out in a thread: that takes longer than to read it."""
    standing = CollectorRegistry()
    standing.register(_Standing(tuple(registry.collect())))
    return standing


class _Standing(Collector):
    def __init__(self, families: tuple[Metric, ...]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


class LiveMetrics:
    """Metrics that are read from live objects whenever they are scraped: nothing sets them, nothing forgets to.

    Every `read` is called on the event loop, where the objects live.

    Args:
        registry: Where they are collected.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, what: str, read: Callable[[], float]) -> None:
        """A value without labels."""
        self.gauges(name, what, (), lambda: {(): read()})

    def gauges(self, name: str, what: str, labels: Labels, read: Callable[[], Readings]) -> None:
        """A value for each tuple of labels."""
        self._add(lambda: GaugeMetricFamily(PREFIX + name, what, labels=labels), read)

    def counter(self, name: str, what: str, read: Callable[[], float]) -> None:
        """A total without labels, kept by the object that counts."""
        self.counters(name, what, (), lambda: {(): read()})

    def counters(self, name: str, what: str, labels: Labels, read: Callable[[], Readings]) -> None:
        """A total for each tuple of labels."""
        self._add(lambda: CounterMetricFamily(PREFIX + name, what, labels=labels), read)

    def histogram(
        self, name: str, what: str, bounds: Sequence[int], read: Callable[[], Mapping[int, int]]
    ) -> None:
        """How often each size occurred; `read` tells size to times."""
        self._registry.register(_LiveHistogram(PREFIX + name, what, bounds, read))

    def _add(
        self,
        family: Callable[[], GaugeMetricFamily | CounterMetricFamily],
        read: Callable[[], Readings],
    ) -> None:
        self._registry.register(_LiveFamily(family, read))


class _LiveFamily(Collector):
    def __init__(
        self,
        family: Callable[[], GaugeMetricFamily | CounterMetricFamily],
        read: Callable[[], Readings],
    ) -> None:
        self._family = family
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """The name alone, for the registry to see that it is given once."""
        return [self._family()]

    def collect(self) -> Iterator[Metric]:
        family = self._family()
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


class _LiveHistogram(Collector):
    def __init__(
        self, name: str, what: str, bounds: Sequence[int], read: Callable[[], Mapping[int, int]]
    ) -> None:
        self._name, self._what = name, what
        self._bounds = {**{str(float(bound)): float(bound) for bound in bounds}, "+Inf": math.inf}
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """The name alone, for the registry to see that it is given once."""
        return [HistogramMetricFamily(self._name, self._what)]

    def collect(self) -> Iterator[Metric]:
        times = dict(self._read())
        buckets = [
            (label, sum(count for size, count in times.items() if size <= bound))
            for label, bound in self._bounds.items()
        ]
        total = sum(size * count for size, count in times.items())
        yield HistogramMetricFamily(self._name, self._what, buckets=buckets, sum_value=total)
