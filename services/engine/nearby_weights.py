"""Which weights take no more memory on this host, because its loaders have them there or leave them on the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable

from services.common.checkpoint.derived_files import derived_name
from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.ids import ArtifactId
from services.common.registry.records import LoaderRecord
from services.common.registry.view import View


class NearbyWeights:
    """What the registry tells of this host's loaders.

    Args:
        boot_id: Of this host.
    """

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._in_memory: frozenset[str] = frozenset()  # names of files
        self._stay_on_disk = False

    async def follow(self, loaders: View[LoaderRecord]) -> None:
        """Listens for ever."""
        async with contextlib.aclosing(loaders.changes()) as changes:
            async for _ in changes:
                self.hear(loaders.records.values())

    def hear(self, loaders: Iterable[LoaderRecord]) -> None:
        """How things stand now."""
        here = [loader for loader in loaders if loader.boot_id == self._boot_id]
        self._in_memory = frozenset(name for loader in here for name in _names(loader))
        self._stay_on_disk = any(not loader.fills_memory for loader in here)

    def has(self, artifact_id: ArtifactId, layout: KernelLayout | None = None) -> bool:
        """Whether to prepare it in that layout takes no memory; read from any thread."""
        name = derived_name(artifact_id, layout) if layout else artifact_id
        return self._stay_on_disk or name in self._in_memory

    def has_others(self, held: Container[ArtifactId]) -> bool:
        """Whether weights are there that `held` does not name; a loader lets them go for others unless somebody has them.

        Read from any thread.
        """
        return any(name.partition(".")[0] not in held for name in self._in_memory)


def _names(loader: LoaderRecord) -> tuple[str, ...]:
    """Of the files that it has in memory; an older one tells artifacts alone, and knows no layouts."""
    return loader.artifact_ids if loader.weights is None else loader.weights
