"""A scrape as a Prometheus makes it, and a look at what came."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import aiohttp
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 10


class Scrape(NamedTuple):
    """All samples of one moment."""

    families: tuple[Metric, ...]

    def value(self, name: str, **labels: str) -> float:
        """The sum over the samples of that name that have these labels, others notwithstanding."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The same, for each value of a label; zeroes left out."""
        values = {found[label] for found, _ in self.samples(name)}
        sums = {value: self.value(name, **{label: value}) for value in values}
        return {value: total for value, total in sums.items() if total}

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        return [
            (sample.labels, sample.value)
            for family in self.families
            for sample in family.samples
            if sample.name == name
        ]

    @property
    def series(self) -> int:
        return sum(len(family.samples) for family in self.families)

    @property
    def names(self) -> set[str]:
        """What expressions may name, also where nothing has been observed yet."""
        return {name for family in self.families for name in _sample_names(family)}


def _sample_names(family: Metric) -> Iterable[str]:
    match family.type:
        case "counter":
            return [f"{family.name}_total"]
        case "histogram":
            return [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
    return [family.name]


def read(registry: CollectorRegistry) -> Scrape:
    return Scrape(tuple(registry.collect()))


async def get(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(f"http://{address}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def scrape(address: str) -> Scrape:
    status, text = await get(address, "/metrics")
    assert 200 == status
    return Scrape(tuple(text_string_to_metric_families(text)))
