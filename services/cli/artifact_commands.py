"""`halogen inspect` and `halogen diff`: what a sound artifact holds, and in what two of them differ."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from services.cli import qualification_text, qualify
from services.cli.console import out
from services.cli.gateway_option import credentials_option
from services.cli.inspected import Inspected
from services.cli.options import JsonOption
from services.common.checkpoint.artifact_diff import ABSENT, Difference, differences
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.graph_hash import topology_digest
from services.common.checkpoint.header import REVISION, VERSION, Header
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import Requirements
from services.common.checkpoint.signatures import Signature
from services.common.checkpoint.tensor_table import encode_entry
from services.common.rpc.credentials import Credentials
from services.common.rpc.endpoint import Endpoint

_DIFFERENT: Final = 1
_WIDTH: Final = 100  # columns, for what people wrote

ArtifactArgument = Annotated[
    Path, typer.Argument(help="An artifact directory, or its model.halogen.", show_default=False)
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Leave the blocks of the weights unread; all else is checked.")
]
RecordsOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="HALOGEN_ADDRESS",
        help="A gateway's host:port; what is on record of it there is printed, too.",
    ),
]


@credentials_option
def inspect(
    artifact: ArtifactArgument,
    *,
    credentials: Credentials,
    quick: QuickOption = False,
    address: RecordsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print all that an artifact says of itself: files, requirements, architecture, graph hash, tensors.

    Status 1 and what is wrong if it is damaged.
    """
    inspected = Inspected.open(artifact, quick=quick)
    described = _describe(inspected)
    if address and inspected.manifest:
        described["qualifications"] = qualify.on_record(Endpoint(address, credentials), inspected.manifest.id)
    if as_json:
        out.print_json(data=described, ensure_ascii=True)  # also what people wrote for the record
    else:
        _print(described)


def diff(
    one: ArtifactArgument, other: ArtifactArgument, quick: QuickOption = False, as_json: JsonOption = False
) -> None:
    """Say in which part and factor two artifacts differ; status 1 if they do, or if one is damaged."""
    sides = Inspected.open(one, quick=quick), Inspected.open(other, quick=quick)
    found = [*differences(sides[0].header, sides[1].header), *_manifest_differences(*sides)]
    if as_json:
        out.print_json(data=[difference._asdict() for difference in found])
    else:
        for part, factor, mine, theirs in found:
            out.print(f"{part}: {factor}: {mine} -> {theirs}")
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


def _print(described: Mapping[str, Any]) -> None:
    for title in ("artifact", "requires", "weights", "architecture", "graph"):
        if title in described:
            _print_facts(title, described[title].items())
    _print_rows("signatures", described.get("signatures", []))
    for qualification in described.get("qualifications", []):
        _print_facts("qualification", qualification_text.facts(qualification))
    for title in ("files", "tensors"):
        _print_rows(title, described.get(title, []))


def _print_facts(title: str, facts: Iterable[tuple[str, Any]]) -> None:
    """A fact a line; a value that is too long for it goes on below."""
    texts = [(name, str(value)) for name, value in facts]
    room = _WIDTH - max(len(f"  {name}  ") for name, _ in texts)
    rows = []
    for name, value in texts:
        first, *more = textwrap.wrap(value, room) or [""]
        rows += [[name, first], *(["", part] for part in more)]
    _print_columns(title, rows)


def _print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    texts = [["" if value is None else str(value) for value in row.values()] for row in rows]
    _print_columns(title, [list(rows[0]), *texts] if rows else [])


def _print_columns(title: str, rows: list[list[str]]) -> None:
    """Lines that a narrow terminal breaks and a search finds, rather than a table that cuts names."""
    if not rows:
        return
    out.print(title, style="bold")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        out.print(f"  {line.rstrip()}")
