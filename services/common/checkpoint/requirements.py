"""What an artifact asks of whoever serves it, and whether a runtime offers that: pure, and known before any download."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.graph_hash import GraphHash, architecture_digest
from services.common.checkpoint.header import Header
from services.common.errors import InvalidRequest, PreconditionFailed

INPUT_IDS: Final = "token_ids.v1"  # one sequence of ids below vocab_size, 1 to max_position_embeddings long
ANY_DEVICE: Final = "any"  # on command lines: no class is required
UNMET: Final = "REQUIREMENTS_UNMET"  # the reason of a refusal
MAX_DEVICE_CLASSES: Final = 32
MAX_RUNTIME_CHARS: Final = 64

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")


class Offer(NamedTuple):
    """What a process offers to artifacts. None: it is not for this process to say.

    Attributes:
        runtime: Its version, as PEP 440 has them.
        device_class: What computes, for example "cpu" or "sm_90".
        precisions: The dtypes of stored tensors that it can use.
        input_schemas: The kinds of input that it takes.
    """

    runtime: str
    device_class: str | None = None
    precisions: frozenset[str] | None = None
    input_schemas: frozenset[str] | None = None


class Unmet(NamedTuple):
    """One requirement that is not met."""

    name: str
    required: str
    actual: str

    def __str__(self) -> str:
        return f"{self.name} {self.required} is required, {self.actual} is here"


class Hosts(NamedTuple):
    """Where an artifact may be served; what whoever converts may narrow.

    Attributes:
        runtime: Version specifiers of PEP 440, for example ">=0.1,<2".
        device_classes: Sorted; none: any.
    """

    runtime: str = ">=0.1"
    device_classes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, runtime: str, device_classes: Iterable[str]) -> Self:
        """Reads what a person wrote.

        Raises:
            InvalidRequest: It is no range of versions, or no name of a class.
        """
        classes = sorted(set(device_classes) - {ANY_DEVICE})
        try:
            return cls(_canonical(runtime), tuple(classes)).checked()
        except ValueError as fault:
            raise InvalidRequest(
                f'{fault}; give versions as in ">=0.1,<2" and device classes as in cpu or sm_90'
            ) from None

    def checked(self) -> Self:
        """Itself; raises ValueError unless it is in the one form that it has in a manifest."""
        if len(self.runtime) > MAX_RUNTIME_CHARS or _canonical(self.runtime) != self.runtime:
            raise _no_range(self.runtime)
        _specifiers(self.runtime)
        if len(self.device_classes) > MAX_DEVICE_CLASSES:
            raise ValueError(f"{len(self.device_classes)} device classes; the most is {MAX_DEVICE_CLASSES}")
        _check_names("device_classes", self.device_classes)
        return self


ANYWHERE: Final = Hosts()  # as far as this release knows


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """What a manifest says under `requires`.

    Attributes:
        input_schema: The kind of input that the model takes.
        precisions: The dtypes of its tensors, sorted.
        hosts: Where it may be served.
        graph: The first three parts of the graph hash: the model that must be built.
    """

    input_schema: str
    precisions: tuple[str, ...]
    hosts: Hosts
    graph: GraphHash

    @classmethod
    def of(cls, header: Header, hosts: Hosts) -> Self:
        """What the weights under that header require, where `hosts` says."""
        return cls(input_schema=INPUT_IDS, precisions=header.precisions, hosts=hosts, graph=header.graph)

    def unmet(self, offer: Offer) -> tuple[Unmet, ...]:
        """What of it `offer` lacks; the graph is for whoever builds it to compare."""
        return tuple(self._unmet(offer))

    def _unmet(self, offer: Offer) -> Iterator[Unmet]:
        if not _specifiers(self.hosts.runtime).contains(Version(offer.runtime), prereleases=True):
            yield Unmet("runtime", self.hosts.runtime, offer.runtime)
        classes = self.hosts.device_classes
        if classes and offer.device_class is not None and offer.device_class not in classes:
            yield Unmet("device class", _listed(classes), offer.device_class)
        if offer.precisions is not None and (lacking := set(self.precisions) - offer.precisions):
            yield Unmet("precision", _listed(lacking), _listed(offer.precisions))
        if offer.input_schemas is not None and self.input_schema not in offer.input_schemas:
            yield Unmet("input schema", self.input_schema, _listed(offer.input_schemas))

    def check(self, offer: Offer) -> None:
        """Raises PreconditionFailed, with the requirement, what is required and what is here, unless all are met."""
        if unmet := self.unmet(offer):
            raise refusal(unmet)

    def to_fields(self) -> dict[str, Any]:
        return {
            "device_classes": list(self.hosts.device_classes),
            "graph": self.graph.to_fields(),
            "input_schema": self.input_schema,
            "precisions": list(self.precisions),
            "runtime": self.hosts.runtime,
        }

    @classmethod
    def from_fields(cls, value: Any, architecture: Architecture) -> Self:
        """Reads what `to_fields` gave, for a model of that architecture; raises ValueError on anything else."""
        fields = Fields(value, "requires")
        requirements = cls(
            input_schema=fields.take("input_schema", str),
            precisions=tuple(fields.take("precisions", list)),
            hosts=Hosts(fields.take("runtime", str), tuple(fields.take("device_classes", list))).checked(),
            graph=GraphHash.from_fields(fields.take("graph", dict)),
        )
        fields.finish()
        _check_names("input_schema", (requirements.input_schema,))
        _check_names("precisions", requirements.precisions)
        if requirements.graph.architecture != architecture_digest(architecture):
            raise ValueError("the graph's part architecture is not that of the architecture here")
        return requirements


def refusal(unmet: Iterable[Unmet], where: str = "") -> PreconditionFailed:
    """The error for requirements that are not met; `where` says by whom, if not by whoever answers."""
    first, *others = unmet
    told = "; ".join(str(each) for each in (first, *others))
    return PreconditionFailed(
        f"the artifact cannot be served{where}: {told}; serve it where that is, or convert it for what there is: "
        "halogen convert --help",
        reason=UNMET,
        metadata=first._asdict(),
    )


def _canonical(runtime: str) -> str:
    """One text for one range, whatever version of `packaging` reads it: sorted, without spaces."""
    return ",".join(sorted({"".join(part.split()) for part in runtime.split(",") if part.strip()}))


def _specifiers(runtime: str) -> SpecifierSet:
    try:
        return SpecifierSet(runtime)
    except InvalidSpecifier:
        raise _no_range(runtime) from None


def _no_range(runtime: str) -> ValueError:
    return ValueError(f"runtime {runtime[:MAX_RUNTIME_CHARS]!r} is no range of versions")


def _check_names(what: str, names: tuple[Any, ...]) -> None:
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names):
        raise ValueError(f"{what} of requires has something that is no plain name")
    if list(names) != sorted(set(names)):
        raise ValueError(f"{what} of requires is not sorted, or has a name twice")


def _listed(names: Iterable[str]) -> str:
    return " or ".join(sorted(names))
