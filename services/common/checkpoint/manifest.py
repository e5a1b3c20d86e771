"""The manifest: which files an artifact is made of. The sha256 of its canonical JSON is the artifact's id."""

from __future__ import annotations

import dataclasses
import enum
import re
from pathlib import PurePosixPath
from typing import Any, Final

from services.common.checkpoint import canonical
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.file_format import WEIGHTS_NAME
from services.common.errors import CorruptData
from services.common.ids import ArtifactId

MANIFEST_NAME: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_SMALL_FILE_BYTES: Final = 64 << 20
MAX_WEIGHTS_BYTES: Final = 1 << 44

_FORMAT: Final = "halogen artifact"
_VERSION: Final = 1
_HEX_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Role(enum.StrEnum):
    """What a file is for."""

    WEIGHTS = "weights"
    CONFIG = "config"
    TOKENIZER = "tokenizer"
    TOKENIZER_CONFIG = "tokenizer_config"
    GENERATION_CONFIG = "generation_config"
    CHAT_TEMPLATE = "chat_template"
    SPECIAL_TOKENS = "special_tokens"


PATHS: Final[dict[Role, str]] = {
    Role.WEIGHTS: WEIGHTS_NAME,
    Role.CONFIG: "config.json",
    Role.TOKENIZER: "tokenizer.json",
    Role.TOKENIZER_CONFIG: "tokenizer_config.json",
    Role.GENERATION_CONFIG: "generation_config.json",
    Role.CHAT_TEMPLATE: "chat_template.jinja",
    Role.SPECIAL_TOKENS: "special_tokens_map.json",
}
REQUIRED_ROLES: Final = frozenset({Role.WEIGHTS, Role.CONFIG, Role.TOKENIZER})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file of an artifact.

    Attributes:
        sha256: Hex; of the whole file, except for weights: there of the header, which holds every block's
            digest (`Header.identity`).
    """

    path: str
    size_bytes: int
    sha256: str
    role: Role


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """The files of an artifact, sorted by path, and the decoder that they make."""

    architecture: Architecture
    files: tuple[ManifestFile, ...]

    @property
    def weights(self) -> ManifestFile:
        return next(file for file in self.files if file.role is Role.WEIGHTS)

    @property
    def small_files(self) -> tuple[ManifestFile, ...]:
        return tuple(file for file in self.files if file.role is not Role.WEIGHTS)

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def id(self) -> ArtifactId:
        return ArtifactId(sha256_hex(self.encode()))

    def file(self, path: str) -> ManifestFile | None:
        return next((file for file in self.files if file.path == path), None)

    def encode(self) -> bytes:
        return canonical.encode(
            {
                "architecture": self.architecture.to_fields(),
                "files": [dataclasses.asdict(file) for file in self.files],
                "format": _FORMAT,
                "version": _VERSION,
            }
        )

    @classmethod
    def decode(cls, text: bytes) -> Manifest:
        """Reads a manifest and trusts nothing in it.

        Raises:
            CorruptData: It is not the canonical text of a manifest that this build knows, or names files
                that an artifact must not have.
        """
        try:
            if len(text) > MAX_MANIFEST_BYTES:
                raise ValueError(f"{len(text)} bytes; the most is {MAX_MANIFEST_BYTES}")
            return cls._from_fields(canonical.decode(text))
        except ValueError as fault:
            raise CorruptData(
                f"{MANIFEST_NAME}: {fault}; convert or fetch the artifact again",
                metadata={"file": MANIFEST_NAME},
            ) from None

    @classmethod
    def _from_fields(cls, value: Any) -> Manifest:
        fields = Fields(value, "manifest")
        if fields.take("format", str) != _FORMAT or fields.take("version", int) != _VERSION:
            raise ValueError(f"not a {_FORMAT} of version {_VERSION}")
        architecture = Architecture.from_fields(fields.take("architecture", dict))
        files = tuple(_decode_file(entry) for entry in fields.take("files", list))
        fields.finish()
        _check_files(files)
        return cls(architecture, files)


def check_path(path: str) -> None:
    """Raises ValueError unless `path` stays below its directory on every file system.

    Relative, `/` between plain ASCII names, no ``.`` or ``..``.
    """
    parts = PurePosixPath(path).parts
    if path.startswith("/") or not parts or "/".join(parts) != path:
        raise ValueError(f"path {path!r} is not relative and plain")
    if any(part in (".", "..") or not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", part) for part in parts):
        raise ValueError(f"path {path!r} has a part that is not a plain name")


def _decode_file(value: Any) -> ManifestFile:
    fields = Fields(value, "file entry")
    path, role = fields.take("path", str), Role(fields.take("role", str))
    check_path(path)
    if path != PATHS[role]:
        raise ValueError(f"path {path!r} is not the name of a {role} file, {PATHS[role]}")
    most = MAX_WEIGHTS_BYTES if role is Role.WEIGHTS else MAX_SMALL_FILE_BYTES
    size_bytes, sha256 = fields.take_count("size_bytes", least=1, most=most), fields.take("sha256", str)
    fields.finish()
    if not _HEX_SHA256.fullmatch(sha256):
        raise ValueError(f"sha256 of {path} is not 64 hexadecimal digits")
    return ManifestFile(path=path, size_bytes=size_bytes, sha256=sha256, role=role)


def _check_files(files: tuple[ManifestFile, ...]) -> None:
    paths = [file.path for file in files]
    if len({path.lower() for path in paths}) < len(paths):
        raise ValueError("two files share a name, perhaps in another case")
    if paths != sorted(paths):
        raise ValueError("files are not sorted by path")
    if missing := REQUIRED_ROLES - {file.role for file in files}:
        raise ValueError(f"no {PATHS[min(missing)]}")
