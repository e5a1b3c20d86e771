"""Which artifacts lie in memory, when each was last asked for, and which may go when room is short.

One that nobody has asked for lately rests: its file is there, but any loader of the host may take it for its room.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from services.common.checkpoint.kernel_layout import KernelLayout
from services.common.ids import ArtifactId
from services.loader.place import Holding, PlaceKind
from services.loader.ranks import file_name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An artifact whose every byte was verified.

    Attributes:
        identity: Of its weights: hex sha256 over header and digest table.
        path: Of its weights, within the artifact.
        part: The tensor-parallel rank whose weights these are, or their layout; empty for the whole as it is stored.
        layout: How matrices lie; None: as they are stored.
        lazy_bytes: How many, at the file's end, engines leave on the disk until they are used.
    """

    artifact_id: ArtifactId
    path: str
    identity: str
    holding: Holding
    huge_pages: bool
    lazy_bytes: int = 0
    part: str = ""
    layout: KernelLayout | None = None

    @property
    def name(self) -> str:
        """What its file is called."""
        return file_name(self.artifact_id, self.part)


@dataclasses.dataclass(slots=True)
class _Resident:
    prepared: Prepared
    asked_at_s: float
    rests: bool = False


class Residents:
    """The prepared artifacts.

    Args:
        keep_s: One asked for within so many seconds is never a victim: an engine may be about to map it.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._by_name: dict[str, _Resident] = {}

    def __iter__(self) -> Iterator[Prepared]:
        return (resident.prepared for resident in self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def artifact_ids(self) -> tuple[ArtifactId, ...]:
        return tuple(sorted({prepared.artifact_id for prepared in self}))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files."""
        return tuple(sorted(self._by_name))

    def add(self, prepared: Prepared, now_s: float) -> None:
        assert prepared.name not in self._by_name
        self._by_name[prepared.name] = _Resident(prepared, now_s)

    def ask(self, name: str, now_s: float) -> Prepared | None:
        """The file of that name if it is here; it then counts as asked for now. One that rested is forgotten instead."""
        resident = self._by_name.get(name)
        if resident is None:
            return None
        if resident.rests:
            del self._by_name[name]
            return None
        resident.asked_at_s = now_s
        return resident.prepared

    def rest_idle(self, now_s: float) -> float | None:
        """Lets those rest that nobody has asked for lately; returns when the next one will be due."""
        for resident in self._awake():
            if now_s - resident.asked_at_s >= self._keep_s:
                resident.prepared.holding.let_go()
                resident.rests = True
        return min((resident.asked_at_s + self._keep_s for resident in self._awake()), default=None)

    def _awake(self) -> list[_Resident]:
        """Those that can rest, and do not."""
        residents = self._by_name.values()
        return [each for each in residents if each.prepared.holding.kind.is_shared and not each.rests]

    def victim(self, kind: PlaceKind, now_s: float) -> Prepared | None:
        """Of those in such a place that nobody has asked for lately, the one asked for longest ago."""
        idle = [
            resident
            for resident in self._by_name.values()
            if resident.prepared.holding.kind is kind and now_s - resident.asked_at_s >= self._keep_s
        ]
        oldest = min(idle, key=lambda resident: resident.asked_at_s, default=None)
        return oldest.prepared if oldest else None

    def remove(self, name: str) -> Prepared:
        return self._by_name.pop(name).prepared

    def held_bytes(self, kind: PlaceKind) -> int:
        """Bytes of the files in such a place."""
        return sum(prepared.holding.size_bytes for prepared in self if prepared.holding.kind is kind)
