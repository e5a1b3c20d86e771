"""What a loader can be told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.config import ProcessConfig
from services.common.errors import InvalidRequest
from services.loader.place import PlaceKind


def default_cache_dir() -> Path:
    """Where a user's programs keep what can be made again (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "halogen"


class LoaderConfig(ProcessConfig):
    """A loader's settings."""

    role: ClassVar[str] = "loader"

    store: str = Field(description="directory or file:// URL where artifacts lie, each under its id")
    place: Literal["auto", "tmpfs", "dev_shm", "memfd", "file"] = Field(
        "auto", description="where weights are put for engines; auto tries all in this order"
    )
    weights_dir: Path | None = Field(
        None, description="tmpfs for weights, best mounted with huge=always; tried first when given"
    )
    cache_dir: Path = Field(
        default_factory=default_cache_dir, description="directory for weights as ordinary files"
    )
    read_threads: int = Field(4, ge=1, le=64, description="4 MiB blocks read at a time")
    keep_s: float = Field(
        300.0, ge=0, description="seconds that weights stay for certain after they were asked for"
    )
    convert_root: Path | None = Field(
        None, description="directory whose subdirectories may be converted by request; none when absent"
    )
    store_check_s: float = Field(1.0, gt=0, description="seconds between looks whether the store is there")

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: str) -> str:
        try:
            ArtifactStore.at(value)
        except InvalidRequest as fault:
            raise ValueError(fault.message) from None
        return value

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.only_place is PlaceKind.TMPFS and self.weights_dir is None:
            raise ValueError("place tmpfs needs weights_dir: the directory of the tmpfs")
        return self

    @property
    def only_place(self) -> PlaceKind | None:
        """The one place that is allowed, or None for all."""
        return None if self.place == "auto" else PlaceKind(self.place)
