"""What of an artifact is wanted in memory: its weights as they are stored, a rank's part of them, or a kernel's layout."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId
from services.loader.ranks import Ranks, file_name


class Wanted(NamedTuple):
    """What is asked for; all of it, as it is stored, where neither is given.

    Attributes:
        ranks: The rank whose part is wanted. Parts have no layout of their own: it then counts alone.
        layout: How matrices shall lie.
    """

    ranks: Ranks | None = None
    layout: KernelLayout | None = None

    @property
    def part(self) -> str:
        """What the file's name has beyond the artifact's id."""
        if self.ranks:
            return self.ranks.name
        return str(self.layout) if self.layout else ""

    @classmethod
    def of_name(cls, name: str) -> tuple[ArtifactId, Self] | None:
        """What a file of that name is: an artifact's, as it is stored or in a layout; None for any other."""
        artifact_id, _, part = name.partition(".")
        layout = KernelLayout.parse(part)
        if not ARTIFACT_ID_PATTERN.fullmatch(artifact_id) or bool(part) != bool(layout):
            return None
        return ArtifactId(artifact_id), cls(layout=layout)

    def file_name(self, artifact_id: ArtifactId) -> str:
        return file_name(artifact_id, self.part)

    def flight(self, artifact_id: ArtifactId) -> str:
        """What is made in one go: one flight at a time for each way of dividing an artifact, and each layout."""
        return f"{artifact_id}/{self.ranks.size if self.ranks else self.layout or ''}"


AS_STORED: Final = Wanted()
