"""Which part of a model is wanted: all of it, or that of a tensor-parallel rank beside the others on its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from services.common.errors import InvalidRequest
from services.common.ids import ArtifactId

MAX_RANKS: Final = 1024


class Ranks(NamedTuple):
    """A rank that asks.

    Attributes:
        size: Ranks that share the model, from 2.
        rank: Which of them asks, from 0.
        here: Those on this host, this one among them, rising: one read fills the files of all.
    """

    size: int
    rank: int
    here: tuple[int, ...]

    @classmethod
    def asked(cls, size: int, rank: int, here: Sequence[int]) -> Ranks | None:
        """What a request says; None when a single rank has all of the model.

        Raises:
            InvalidRequest: There is no such rank.
        """
        if not 1 <= size <= MAX_RANKS:
            raise InvalidRequest(f"tensor-parallel size {size}; it may be 1 to {MAX_RANKS}")
        everyone = tuple(sorted({rank, *(here or range(size))}))
        if not 0 <= everyone[0] <= everyone[-1] < size:
            raise InvalidRequest(f"ranks {everyone} of {size}; they are 0 to {size - 1}")
        return cls(size, rank, everyone) if size > 1 else None

    @property
    def name(self) -> str:
        return rank_name(self.rank, self.size)


def rank_name(rank: int, size: int) -> str:
    return f"rank-{rank}-of-{size}"


def file_name(artifact_id: ArtifactId, part: str) -> str:
    """What a file of weights is called in its place.

    Args:
        artifact_id: Of the artifact.
        part: A rank's name; empty for the whole.
    """
    return f"{artifact_id}.{part}" if part else artifact_id
