"""What a loader tells Prometheus."""

from __future__ import annotations

import collections
import contextlib
import enum
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.common.metrics import PREFIX, REQUEST_S, LiveMetrics, Readings
from services.loader.reading import ReadReport
from services.loader.residents import Prepared
from services.loader.traffic import Traffic


class Stage(enum.StrEnum):
    """What a load consists of, in this order."""

    VERIFY = "verify"  # small files against their digests
    ADOPT = "adopt"  # weights that are in memory already verified; what follows is then left out
    DERIVE = "derive"  # a kernel's layout made on the disk, once for a host
    PLACE = "place"  # room taken, its pages faulted in
    FETCH = "fetch"  # blocks of weights read, each verified by the thread that read it


class LoaderMetrics:
    """Measures loads.

    Args:
        registry: Where they are collected.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._stages = Histogram(
            PREFIX + "load_stage_seconds",
            "Seconds that a stage of a load took, whether it came to its end or not.",
            ("stage",),
            buckets=(0.01, 0.05, 0.1, *REQUEST_S),
            registry=registry,
        )
        self._loads = Counter(
            PREFIX + "loads",
            "Loads that have ended: ready, or by the error's reason.",
            ("outcome",),
            registry=registry,
        )
        self._read = Counter(PREFIX + "read_bytes", "Bytes read and verified.", registry=registry)

    @contextlib.contextmanager
    def stage(self, stage: Stage) -> Iterator[None]:
        """Measures one stage of one load."""
        from_s = time.monotonic()
        try:
            yield
        finally:
            self._stages.labels(stage.value).observe(time.monotonic() - from_s)

    def read(self, by_bytes: int) -> None:
        self._read.inc(by_bytes)

    def end(self, outcome: str) -> None:
        """A load has ended; called once for each."""
        self._loads.labels(outcome).inc()


def export_live(
    registry: CollectorRegistry, residents: Iterable[Prepared], report: ReadReport, traffic: Traffic
) -> None:
    """Makes what lies in memory, and how it is read, part of `registry`; all are read at every scrape."""
    live = LiveMetrics(registry)
    live.gauges(
        "resident_bytes", "Bytes of weights that are kept, by place.", ("place",), lambda: _bytes(residents)
    )
    live.gauges(
        "resident_huge_bytes",
        "Those of them that lie on huge pages, by place.",
        ("place",),
        lambda: _bytes(each for each in residents if each.huge_pages),
    )
    live.gauges(
        "resident_derived_bytes",
        "Those of resident_bytes that lie in a kernel's layout, by layout.",
        ("layout",),
        lambda: _derived_bytes(residents),
    )
    live.gauge("resident_artifacts", "Artifacts that are kept.", lambda: sum(1 for _ in residents))
    live.gauges(
        "read_mode",
        "1 for the way in which weights were last read: direct, buffered or mmap.",
        ("mode",),
        lambda: {(report.mode.value,): 1} if report.mode else {},
    )
    live.gauge(
        "live_traffic", "1 while engines of this host serve and reads hold back.", lambda: traffic.is_live
    )


def _derived_bytes(residents: Iterable[Prepared]) -> Readings:
    sizes: collections.Counter[tuple[str, ...]] = collections.Counter()
    for prepared in residents:
        if prepared.layout:
            sizes[prepared.layout.abi,] += prepared.holding.size_bytes
    return sizes


def _bytes(residents: Iterable[Prepared]) -> Readings:
    sizes: collections.Counter[tuple[str, ...]] = collections.Counter()
    for prepared in residents:
        sizes[prepared.holding.kind.value,] += prepared.holding.size_bytes
    return sizes
