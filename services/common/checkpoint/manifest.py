"""The manifest: which files an artifact is made of, and what it asks of whoever serves it.

The sha256 of its canonical JSON is the artifact's id.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any, Final

from services.common.checkpoint import canonical
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.fields import Fields
from services.common.checkpoint.file_format import WEIGHTS_NAME
from services.common.checkpoint.plain_path import check_path
from services.common.checkpoint.requirements import Requirements
from services.common.errors import CorruptData, InvalidRequest
from services.common.ids import ArtifactId

MANIFEST_NAME: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_SMALL_FILE_BYTES: Final = 64 << 20
MAX_WEIGHTS_BYTES: Final = 1 << 44
MAX_FILES: Final = 32

_FORMAT: Final = "halogen artifact"
_VERSION: Final = 2
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
    REPRESENTATIVE_REQUESTS = "representative_requests"


PATHS: Final[dict[Role, str]] = {
    Role.WEIGHTS: WEIGHTS_NAME,
    Role.CONFIG: "config.json",
    Role.TOKENIZER: "tokenizer.json",
    Role.TOKENIZER_CONFIG: "tokenizer_config.json",
    Role.GENERATION_CONFIG: "generation_config.json",
    Role.CHAT_TEMPLATE: "chat_template.jinja",
    Role.SPECIAL_TOKENS: "special_tokens_map.json",
    Role.REPRESENTATIVE_REQUESTS: "representative_requests.jsonl",
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
    """The files of an artifact, sorted by path, the decoder that they make, and what it requires."""

    architecture: Architecture
    files: tuple[ManifestFile, ...]
    requires: Requirements

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
                "requires": self.requires.to_fields(),
                "version": _VERSION,
            }
        )

    @classmethod
    def decode(cls, text: bytes) -> Manifest:
        """Reads a manifest and trusts nothing in it.

        Raises:
            CorruptData: It is not the canonical text of a manifest, or names files that an artifact must not have.
            InvalidRequest: It is a manifest of another version.
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
        if fields.take("format", str) != _FORMAT:
            raise ValueError(f"not a {_FORMAT}")
        if (version := fields.take("version", int)) != _VERSION:
            raise _other_version(version)
        architecture = Architecture.from_fields(fields.take("architecture", dict))
        files = _decode_files(fields.take("files", list))
        requires = Requirements.from_fields(fields.take("requires", dict), architecture)
        fields.finish()
        return cls(architecture, files, requires)


def _other_version(version: int) -> InvalidRequest:
    return InvalidRequest(
        f"{MANIFEST_NAME} is of version {version}; this build reads version {_VERSION}: convert the original "
        "checkpoint with this build's `halogen convert`",
        reason="FORMAT_VERSION",
        metadata={"file": MANIFEST_NAME},
    )


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


def _decode_files(entries: list[Any]) -> tuple[ManifestFile, ...]:
    if len(entries) > MAX_FILES:
        raise ValueError(f"{len(entries)} files; the most is {MAX_FILES}")
    files = tuple(_decode_file(entry) for entry in entries)
    _check_files(files)
    return files


def _check_files(files: tuple[ManifestFile, ...]) -> None:
    paths = [file.path for file in files]
    if len({path.lower() for path in paths}) < len(paths):
        raise ValueError("two files share a name, perhaps in another case")
    if paths != sorted(paths):
        raise ValueError("files are not sorted by path")
    if missing := REQUIRED_ROLES - {file.role for file in files}:
        raise ValueError(f"no {PATHS[min(missing)]}")
