"""What a derived weight file says of itself: of which file it was made, and into which layout."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, Self

from services.common.checkpoint.fields import Fields
from services.common.checkpoint.graph_hash import GraphHash
from services.common.checkpoint.kernel_layout import KernelLayout

_HEX_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


class Derivation(NamedTuple):
    """A file's origin.

    Attributes:
        source: Hex identity of the artifact's own weight file.
        layout: How the matrices lie.
        graph: The graph hash of that file: the model is the same.
    """

    source: str
    layout: KernelLayout
    graph: GraphHash

    def to_fields(self) -> dict[str, Any]:
        return {"source": self.source, **self.layout._asdict(), "graph": self.graph.to_fields()}

    @classmethod
    def from_fields(cls, value: Any) -> Self:
        """Raises ValueError unless it is what `to_fields` gave."""
        fields = Fields(value, "derived")
        source = fields.take("source", str)
        layout = KernelLayout(*(fields.take(name, str) for name in KernelLayout._fields))
        graph = GraphHash.from_fields(fields.take("graph", dict))
        fields.finish()
        if not _HEX_SHA256.fullmatch(source):
            raise ValueError("source of derived is not 64 hexadecimal digits")
        if not all(_NAME.fullmatch(name) for name in layout):
            raise ValueError("layout of derived is no plain name")
        return cls(source, layout, graph)
