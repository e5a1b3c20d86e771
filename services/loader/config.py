"""What a loader can be told."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from services.common.cache_dir import default_cache_dir
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.load_format import LoadFormat, check_format
from services.common.errors import HalogenError, InvalidRequest
from services.common.http_credentials import token_in
from services.common.memory_guard import DEFAULT_RATIO
from services.common.model_registry_config import CA_SETTING, TOKEN_SETTING, ModelRegistryConfig
from services.common.store_location import is_http
from services.common.trust_config import TrustConfig
from services.loader.http_store import HttpOptions
from services.loader.place import PlaceKind
from services.loader.store_url import store_url
from services.loader.weight_file import ReadMode

REGISTRY_TRIES: Final = 3  # requests in a row that come to nothing end a fetch that nobody waits for


class LoaderConfig(TrustConfig):
    """A loader's settings."""

    role: ClassVar[str] = "loader"

    store: str = Field(
        description="directory, file:// or http(s):// URL where artifacts lie, each under its id; over HTTP they come "
        "through a cache in cache_dir"
    )
    store_ca_file: Path | None = Field(
        None, description="CA certificates of an https store (PEM); the system's when absent"
    )
    store_token_file: Path | None = Field(
        None, description="file with a bearer token for an http(s) store; none is sent when absent"
    )
    store_timeout_s: float = Field(
        30.0,
        gt=0,
        description="seconds without a byte after which a request to an http(s) store is made anew",
    )
    store_connections: int = Field(
        4, ge=1, le=64, description="requests at a time for the weights of one artifact from an http(s) store"
    )
    registry: ModelRegistryConfig = ModelRegistryConfig()
    place: Literal["auto", "tmpfs", "dev_shm", "memfd", "file"] = Field(
        "auto", description="where weights are put for engines; auto tries all in this order"
    )
    weights_dir: Path | None = Field(
        None, description="tmpfs for weights, best mounted with huge=always; tried first when given"
    )
    cache_dir: Path = Field(
        default_factory=default_cache_dir,
        description="directory for weights as ordinary files, for artifacts that come over HTTP, and for weights packed "
        "for kernels",
    )
    cache_max_bytes: int | None = Field(
        None,
        gt=0,
        description="most bytes of artifacts that came over HTTP and of weights packed for kernels; when absent, nine "
        "tenths of what they take and the disk has free",
    )
    load_thread_num: int = Field(8, ge=1, le=64, description="4 MiB blocks read at a time")
    read_mode: Literal["auto", "direct", "buffered", "mmap"] = Field(
        "auto",
        description="how weights are read: auto probes for direct reads and else takes buffered ones; mmap, never "
        "chosen by itself, copies nothing: engines map the store's own file, which nobody may write to",
    )
    mmap_threshold: float = Field(
        1.0,
        ge=0,
        le=1,
        description="with read_mode mmap, the share of the weights that is mapped lazily, read when first used",
    )
    live_load_bytes_per_s: int = Field(
        1 << 30,
        ge=0,
        description="most bytes read per second, at idle I/O priority and fewer with busy cores, while engines of this host serve; 0 is no "
        "bound; with no engine serving, reads go at full speed",
    )
    model_path: Path | None = Field(
        None,
        description="artifact, Hugging Face directory or GGUF file that is brought into the store at the start, and into "
        "memory once an engine of this host has said how it wants weights to lie",
    )
    load_format: Literal["auto", "v2", "safetensors", "pt", "gguf"] = Field(
        "auto",
        description="what model_path must hold: auto takes any and converts it to v2 where it is not; v2, "
        "safetensors, pt or gguf refuse to start with another",
    )
    keep_s: float = Field(
        30.0,
        ge=0,
        description="seconds that weights stay for certain after they were asked for, since an engine may be about to "
        "map them; what is published by drain_then_load waits so long for their room",
    )
    memory_guard_ratio: float = Field(
        DEFAULT_RATIO,
        gt=0,
        le=1,
        description="a load is refused that would take more than this part of the memory of the control group or host",
    )
    convert_root: Path | None = Field(
        None, description="directory whose subdirectories may be converted by request; none when absent"
    )
    store_check_s: float = Field(1.0, gt=0, description="seconds between looks whether the store is there")

    @field_validator("store")
    @classmethod
    def _check_store(cls, value: str) -> str:
        try:
            if is_http(value):
                store_url(value)
            else:
                ArtifactStore.at(value)
        except InvalidRequest as fault:
            raise ValueError(fault.message) from None
        return value

    @field_validator("model_path")
    @classmethod
    def _make_absolute(cls, value: Path | None) -> Path | None:
        return value and value.absolute()

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.model_path is not None:
            try:
                check_format(self.model_path, self.asked_format)
            except HalogenError as fault:
                raise ValueError(fault.message) from None
        elif self.load_format != "auto":
            raise ValueError("load_format needs model_path: the model that must be of that format")
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.asked_mode is ReadMode.MMAP and self.only_place not in {None, PlaceKind.FILE}:
            raise ValueError("read_mode mmap leaves weights in the store; leave place out")
        if self.asked_mode is not ReadMode.MMAP and self.mmap_threshold != 1:
            raise ValueError("mmap_threshold needs read_mode mmap: only then are weights mapped lazily")
        return self

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if self.only_place is PlaceKind.TMPFS and self.weights_dir is None:
            raise ValueError("place tmpfs needs weights_dir: the directory of the tmpfs")
        return self

    @model_validator(mode="after")
    def _check_writing(self) -> Self:
        for name in ("convert_root", "model_path"):
            if is_http(self.store) and getattr(self, name) is not None:
                raise ValueError(f"{name} needs a store that can be written: a directory")
        if self.asked_mode is ReadMode.MMAP and (is_http(self.store) or self.registry.fallback_enabled):
            raise ValueError(
                "read_mode mmap needs a store that is a directory, and no registry.fallback_enabled: what comes over "
                "HTTP may be evicted"
            )
        return self

    @property
    def directory_store(self) -> ArtifactStore | None:
        """The store, if it is a directory."""
        return None if is_http(self.store) else ArtifactStore.at(self.store)

    @property
    def store_place(self) -> Path | str:
        """Its directory, or its URL."""
        directory = self.directory_store
        return directory.root if directory else self.store

    def http_options(self) -> HttpOptions:
        """How an http(s) store is asked; raises PreconditionFailed where the token's file cannot be read."""
        return HttpOptions(
            ca_file=self.store_ca_file,
            token=token_in(self.store_token_file, "--store-token-file"),
            timeout_s=self.store_timeout_s,
        )

    def registry_options(self) -> HttpOptions:
        """The same for the registry of models."""
        return HttpOptions(
            ca_file=self.registry.ca_file,
            ca_setting=CA_SETTING,
            token=token_in(self.registry.token_file, TOKEN_SETTING),
            timeout_s=self.registry.timeout_s,
            tries=REGISTRY_TRIES,
        )

    @property
    def asked_format(self) -> LoadFormat:
        """What `model_path` must hold."""
        return LoadFormat(self.load_format)

    @property
    def asked_mode(self) -> ReadMode | None:
        """The one way of reading that is wanted, or None for the best that works."""
        return None if self.read_mode == "auto" else ReadMode(self.read_mode)

    @property
    def only_place(self) -> PlaceKind | None:
        """The one place that is allowed, or None for all."""
        return None if self.place == "auto" else PlaceKind(self.place)
