"""Which weights take no more memory on this host, because its loaders have them there or leave them on the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

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
        self._in_memory: frozenset[ArtifactId] = frozenset()
        self._stay_on_disk = False

    async def follow(self, loaders: View[LoaderRecord]) -> None:
        """Listens for ever."""
        async with contextlib.aclosing(loaders.changes()) as changes:
            async for _ in changes:
                self.hear(loaders.records.values())

    def hear(self, loaders: Iterable[LoaderRecord]) -> None:
        """How things stand now."""
        here = [loader for loader in loaders if loader.boot_id == self._boot_id]
        self._in_memory = frozenset(each for loader in here for each in loader.artifact_ids)
        self._stay_on_disk = any(not loader.fills_memory for loader in here)

    def has(self, artifact_id: ArtifactId) -> bool:
        """Whether to prepare it takes no memory; read from any thread."""
        return self._stay_on_disk or artifact_id in self._in_memory
