"""A computation as a graph, and a hash of it that knows neither names nor the order in which it was written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

from services.common.checkpoint import canonical
from services.common.checkpoint.digest import sha256_hex

Attribute = bool | int | float | str
Dimension = int | str  # a text is the name of a size that each step brings anew

ATTRIBUTES: Final = (bool, int, float, str)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operation.

    Attributes:
        inputs: Names of the nodes whose outputs it takes, in order.
        attributes: Whatever else its result depends on.
        dtype: Of its output.
        shape: Of its output.
    """

    op: str
    inputs: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute]
    dtype: str
    shape: tuple[Dimension, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by name, and the one whose output is the result."""

    nodes: Mapping[str, Node]
    output: str

    def digest(self) -> str:
        """Hex sha256 over all that the output depends on: a Merkle hash, with sizes numbered by first use.

        Raises:
            ValueError: A node depends on itself or on one that is not there, or nothing depends on it.
            TypeError: An attribute is of a type that has no one text.
        """
        sizes: dict[str, int] = {}
        digests: dict[str, str] = {}
        for name in self._in_order():
            node = self.nodes[name]
            digests[name] = _digest(node, [digests[each] for each in node.inputs], sizes)
        if unused := self.nodes.keys() - digests.keys():
            raise ValueError(f"graph: nothing depends on {min(unused)}")
        return digests[self.output]

    def _in_order(self) -> Iterator[str]:
        """Every node after its inputs, the first input first: an order that the output alone decides."""
        done: set[str] = set()
        begun: set[str] = set()
        stack = [self.output]
        while stack:
            name = stack[-1]
            waiting = [each for each in self._inputs(name) if each not in done]
            if waiting and name in begun:
                raise ValueError(f"graph: {name} depends on itself")
            if waiting:
                begun.add(name)
                stack.extend(reversed(waiting))
                continue
            stack.pop()
            if name not in done:
                done.add(name)
                yield name

    def _inputs(self, name: str) -> tuple[str, ...]:
        if name not in self.nodes:
            raise ValueError(f"graph: {name} is not there")
        return self.nodes[name].inputs


def _digest(node: Node, inputs: list[str], sizes: dict[str, int]) -> str:
    if strange := [name for name, value in node.attributes.items() if type(value) not in ATTRIBUTES]:
        raise TypeError(f"graph: {node.op} has an attribute {strange[0]} of a type that has no one text")
    shape = [
        f"s{sizes.setdefault(size, len(sizes))}" if isinstance(size, str) else size for size in node.shape
    ]
    return sha256_hex(canonical.encode([node.op, dict(node.attributes), inputs, node.dtype, shape]))
