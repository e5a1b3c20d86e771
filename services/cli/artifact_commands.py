"""`halogen inspect` and `halogen diff`: what an artifact holds, and in what two differ; no byte of weights is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from services.cli import qualify
from services.cli.console import CommandError, out
from services.cli.options import AddressOption, JsonOption
from services.common.checkpoint.artifact_diff import ABSENT, Difference, differences
from services.common.checkpoint.artifact_store import StoredArtifact, read_manifest
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.graph_hash import topology_digest
from services.common.checkpoint.header import REVISION, VERSION, Header
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.signatures import SIGNATURES_NAME, Signature, Signatures
from services.common.checkpoint.tensor_table import encode_entry
from services.common.checkpoint.verified_artifact import decode_header, read_header

_DIFFERENT: Final = 1

ArtifactArgument = Annotated[
    Path, typer.Argument(help="An artifact directory, or its model.halogen.", show_default=False)
]


class Inspected(NamedTuple):
    """A weight file's header, and the artifact around it, with who signed it, if there is one."""

    header: Header
    manifest: Manifest | None
    signatures: tuple[Signature, ...] = ()

    @classmethod
    def open(cls, path: Path) -> Inspected:
        """Raises CommandError where there is nothing, HalogenError where it is not what it should be."""
        if path.is_dir():
            stored = StoredArtifact(path, read_manifest(path))
            return cls(read_header(stored), stored.manifest, _signatures(stored))
        if not path.is_file():
            raise CommandError(f"{path}: no such file or directory; give an artifact: halogen inspect DIR")
        with path.open("rb") as weights:
            return cls(decode_header(weights), None)


def _signatures(stored: StoredArtifact) -> tuple[Signature, ...]:
    try:
        return Signatures.decode(stored.signatures).entries
    except ValueError as fault:
        raise CommandError(f"{SIGNATURES_NAME} cannot be read: {fault}; remove it and sign again") from None


def inspect(artifact: ArtifactArgument, address: AddressOption = None, as_json: JsonOption = False) -> None:
    """Print all that an artifact says of itself: files, requirements, architecture, graph hash, tensors.

    With a gateway's address, also what is on record of it there.
    """
    inspected = Inspected.open(artifact)
    described = _describe(inspected)
    if address and inspected.manifest:
        described["qualifications"] = qualify.on_record(address, inspected.manifest.id)
    if as_json:
        out.print_json(data=described)
        return
    for title in ("artifact", "requires", "weights", "architecture", "graph"):
        if title in described:
            _print_facts(title, described[title])
    if inspected.manifest:
        _print_rows("signatures", described["signatures"])
        _print_rows("qualifications", described.get("qualifications", []))
        _print_rows("files", described["files"])
    _print_rows("tensors", described["tensors"])


def diff(one: ArtifactArgument, other: ArtifactArgument, as_json: JsonOption = False) -> None:
    """Say in which part and factor two artifacts differ; status 1 if they do."""
    sides = Inspected.open(one), Inspected.open(other)
    found = [*differences(sides[0].header, sides[1].header), *_manifest_differences(*sides)]
    if as_json:
        out.print_json(data=[difference._asdict() for difference in found])
    else:
        for part, factor, mine, theirs in found:
            out.print(f"{part}: {factor}: {mine} -> {theirs}", markup=False)
        if not found:
            out.print("no difference")
    if found:
        raise SystemExit(_DIFFERENT)


def _describe(inspected: Inspected) -> dict[str, Any]:
    header, manifest, signatures = inspected
    described: dict[str, Any] = {}
    if manifest:
        described["artifact"] = {"id": manifest.id, "total_bytes": manifest.total_bytes}
        described["signatures"] = [_describe_signature(each, manifest) for each in signatures]
        described["requires"] = _describe_requirements(manifest.requires)
        described["files"] = [file._asdict() for file in _files(manifest)]
    return described | {
        "weights": _describe_weights(header),
        "architecture": header.architecture.to_fields(),
        "graph": {**header.graph.to_fields(), "declared_alike_here": _is_declared_alike(header)},
        "tensors": [encode_entry(entry) for entry in header.layout.entries],
    }


def _describe_signature(signature: Signature, manifest: Manifest) -> dict[str, Any]:
    return {"public_key": signature.public_key, "is_of_this_artifact": signature.is_of(manifest.id)}


def _describe_requirements(requires: Requirements) -> dict[str, Any]:
    """As the manifest has it, but for the graph, which is shown by itself."""
    return {name: value for name, value in requires.to_fields().items() if name != "graph"}


def _describe_weights(header: Header) -> dict[str, Any]:
    return {
        "format": f"{VERSION}.{REVISION}",
        "identity": header.identity,
        "file_bytes": header.file_bytes,
        "data_offset": header.data_offset,
        "digest_blocks": len(header.digests),
        "digest_block_bytes": BLOCK_BYTES,
        **header.storage._asdict(),
    }


def _is_declared_alike(header: Header) -> bool:
    """Whether this build, too, computes the topology that the file's writer did."""
    return header.graph.topology == topology_digest(header.architecture)


class _File(NamedTuple):
    path: str
    size_bytes: int
    sha256: str


def _files(manifest: Manifest) -> list[_File]:
    return [_File(file.path, file.size_bytes, file.sha256) for file in manifest.files]


def _manifest_differences(one: Inspected, other: Inspected) -> list[Difference]:
    """Of the requirements and of the files beside the weights, where both sides have a manifest."""
    if not (one.manifest and other.manifest):
        return []
    sides = one.manifest, other.manifest
    requires = [_describe_requirements(side.requires) for side in sides]
    files = [{file.path: file.sha256 for file in side.small_files} for side in sides]
    return [*_unequal("requires", *requires), *_unequal("files", *files)]


def _unequal(part: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(part, name, mine.get(name, ABSENT), theirs.get(name, ABSENT))
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]


def _print_facts(title: str, facts: dict[str, Any]) -> None:
    _print_columns(title, [[name, str(value)] for name, value in facts.items()])


def _print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    texts = [["" if value is None else str(value) for value in row.values()] for row in rows]
    _print_columns(title, [list(rows[0]), *texts] if rows else [])


def _print_columns(title: str, rows: list[list[str]]) -> None:
    """Lines that a narrow terminal breaks and a search finds, rather than a table that cuts names."""
    if not rows:
        return
    out.print(title, style="bold", markup=False)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        out.print(f"  {line.rstrip()}", markup=False)
