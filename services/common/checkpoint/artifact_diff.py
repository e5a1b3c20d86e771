"""In which part and factor two weight files differ, from their headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from services.common.checkpoint.decoder_graph import decoder_graph
from services.common.checkpoint.graph import Graph, Node
from services.common.checkpoint.graph_hash import tensor_factors
from services.common.checkpoint.header import Header

ABSENT: Final = "absent"


class Difference(NamedTuple):
    """One factor that is not the same.

    Attributes:
        part: Of the graph hash, or "numbers": the bytes of tensors.
        factor: What in it, for example "rope_theta".
        one: Its value on one side, `ABSENT` where it has none.
        other: Its value on the other.
    """

    part: str
    factor: str
    one: Any
    other: Any


def differences(one: Header, other: Header) -> tuple[Difference, ...]:
    """All of them, part by part; none: the two files hold the same bytes."""
    return (*_topology(one, other), *_architecture(one, other), *_tensors(one, other), *_numbers(one, other))


def _topology(one: Header, other: Header) -> Iterator[Difference]:
    """Operation by operation: what is the same in every layer is told once."""
    if one.graph.topology == other.graph.topology:
        return
    graphs = decoder_graph(one.architecture), decoder_graph(other.architecture)
    told = dict.fromkeys(_operations(*graphs))
    if not told:  # the same architecture, declared by two builds
        told = {("declaration", one.graph.topology, other.graph.topology): None}
    for factor, mine, theirs in told:
        yield Difference("topology", factor, mine, theirs)


def _operations(one: Graph, other: Graph) -> Iterator[tuple[str, Any, Any]]:
    if len(one.nodes) != len(other.nodes):
        yield "nodes", len(one.nodes), len(other.nodes)
    for name in (name for name in one.nodes if name in other.nodes):
        mine, theirs = _aspects(one.nodes[name]), _aspects(other.nodes[name])
        op = one.nodes[name].op
        yield from ((f"{op} {key}", *pair) for key, *pair in _unequal(mine, theirs) if op != "weight")


def _aspects(node: Node) -> dict[str, Any]:
    inputs = len(node.inputs)
    return {**node.attributes, "op": node.op, "inputs": inputs, "dtype": node.dtype, "shape": str(node.shape)}


def _architecture(one: Header, other: Header) -> Iterator[Difference]:
    for name, mine, theirs in _unequal(one.architecture.to_fields(), other.architecture.to_fields()):
        yield Difference("architecture", name, mine, theirs)


def _tensors(one: Header, other: Header) -> Iterator[Difference]:
    tables = [tensor_factors(header.layout.entries, header.storage) for header in (one, other)]
    mine, theirs = ({tensor["name"]: tensor for tensor in table.pop("tensors")} for table in tables)
    for name, a, b in _unequal(*tables):
        yield Difference("tensors", name, a, b)
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in mine or name not in theirs:
            yield Difference("tensors", name, *("present" if name in t else ABSENT for t in (mine, theirs)))
            continue
        for field, a, b in _unequal(mine[name], theirs[name]):
            yield Difference("tensors", f"{name} {field}", a, b)


def _unequal(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted(one.keys() | other.keys()):
        mine, theirs = one.get(name, ABSENT), other.get(name, ABSENT)
        if mine != theirs:
            yield name, mine, theirs


def _numbers(one: Header, other: Header) -> Iterator[Difference]:
    """Which tensors may hold other bytes: those in blocks with other digests, where both lie alike."""
    if one.graph.tensors != other.graph.tensors or _places(one) != _places(other):
        return
    for index, (mine, theirs) in enumerate(zip(one.digests, other.digests, strict=True)):
        if mine != theirs:
            names = [entry.name for entry in one.tensors_in_block(index)]
            factor = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
            yield Difference("numbers", f"block {index}, {factor}", mine.hex(), theirs.hex())


def _places(header: Header) -> list[tuple[str, int]]:
    return [(entry.name, entry.offset - header.data_offset) for entry in header.layout.entries]
