"""The graph hash: which model a file holds and which build computes it, in five parts with a digest each.

The first three belong to the artifact and have the artifact's root over them; with what a build brings there
is a build root over all five. A root that differs is explained part by part, and a part factor by factor.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from services.common.checkpoint import canonical
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.decoder_graph import decoder_graph
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.graph import ATTRIBUTES, Attribute
from services.common.checkpoint.layout import Storage, TensorEntry

PARTS: Final = ("topology", "architecture", "tensors")


class GraphHash(NamedTuple):
    """Hex sha256 of each part that an artifact has.

    Attributes:
        topology: What is computed: the Merkle hash of the decoder's graph.
        architecture: Every field of the architecture.
        tensors: Every tensor's name, dtype, shape, neighbours, division and scales; not its place.
    """

    topology: str
    architecture: str
    tensors: str

    @property
    def root(self) -> str:
        return _digest("artifact", self._asdict())

    @classmethod
    def of(cls, architecture: Architecture, entries: Sequence[TensorEntry], storage: Storage) -> Self:
        return cls(
            topology=topology_digest(architecture),
            architecture=architecture_digest(architecture),
            tensors=tensors_digest(entries, storage),
        )

    def differing(self, other: GraphHash) -> tuple[str, ...]:
        """The names of the parts that are not the same."""
        return tuple(part for part in PARTS if getattr(self, part) != getattr(other, part))

    def to_fields(self) -> dict[str, str]:
        return {**self._asdict(), "root": self.root}

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Raises ValueError unless it is what `to_fields` gave."""
        fields = Fields(value, "graph")
        graph = cls(*(fields.take(part, str) for part in PARTS))
        root = fields.take("root", str)
        fields.finish()
        if root != graph.root:
            raise ValueError("the graph's root is not that of its parts")
        return graph


class Build(NamedTuple):
    """What a build brings to a model.

    Attributes:
        kernels: Choices that change how numbers come out or lie.
        device: The class of device, and the versions of what drives it.
    """

    kernels: Mapping[str, Attribute]
    device: Mapping[str, Attribute]

    def root(self, graph: GraphHash) -> str:
        """Hex sha256 over all five parts."""
        parts = {"kernels": _digest("kernels", self.kernels), "device": _digest("device", self.device)}
        return _digest("build", {**parts, "artifact": graph.root})


class Built(NamedTuple):
    """A model in a build: all five parts."""

    graph: GraphHash
    build: Build

    @property
    def root(self) -> str:
        return self.build.root(self.graph)

    @property
    def layout(self) -> str:
        """How its weights lie; empty: as they are stored."""
        return str(self.build.kernels.get("layout", ""))


@functools.lru_cache(maxsize=16)
def topology_digest(architecture: Architecture) -> str:
    """The first part, computed once for each architecture."""
    return _digest("topology", decoder_graph(architecture).digest())


def architecture_digest(architecture: Architecture) -> str:
    """The second part: every field there is, none left out.

    Raises:
        TypeError: A field is of a type that has no one text.
    """
    fields = architecture.to_fields()
    if strange := [name for name, value in fields.items() if type(value) not in ATTRIBUTES]:
        raise TypeError(f"architecture: {strange[0]} is of a type that has no one text")
    return _digest("architecture", fields)


def tensors_digest(entries: Iterable[TensorEntry], storage: Storage) -> str:
    """The third part."""
    return _digest("tensors", tensor_factors(entries, storage))


def tensor_factors(entries: Iterable[TensorEntry], storage: Storage) -> dict[str, Any]:
    """What the third part is made of; the same in whatever order groups lie."""
    groups = itertools.groupby(entries, key=lambda entry: entry.group or entry.name)
    tensors = [_factors(entry, place) for _, members in groups for place, entry in enumerate(members)]
    return {**storage._asdict(), "tensors": sorted(tensors, key=lambda factors: str(factors["name"]))}


def _factors(entry: TensorEntry, place: int) -> dict[str, Any]:
    return {
        "name": entry.name,
        "dtype": entry.dtype.value,
        "shape": list(entry.shape),
        "group": entry.group,
        "place_in_group": place,
        "shard": entry.shard.value,
        "quantisation": entry.quantisation.to_fields() if entry.quantisation else None,
    }


def _digest(part: str, factors: Any) -> str:
    return sha256_hex(canonical.encode([part, factors]))
