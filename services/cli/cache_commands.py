"""`halogen cache`: what a host's loaders have fetched over HTTP or packed for kernels, and what of it is to stay."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.console import CommandError, out
from services.cli.id_prefix import completed
from services.cli.options import JsonOption
from services.common.cache_dir import default_cache_dir
from services.common.checkpoint.cache_directory import NAME, CacheDirectory
from services.common.checkpoint.cache_entry import CacheEntry, EntryKind
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId

app = typer.Typer(
    help="The cache of this host's loaders, for artifacts that come over HTTP and for weights that were packed for "
    "kernels. Local systems of one user share it.",
    no_args_is_help=True,
)

CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir", envvar="HALOGEN_CACHE_DIR", help="What the loaders were told; theirs by default."
    ),
]
IdArgument = Annotated[
    str, typer.Argument(help="An artifact's id, or the beginning (8 digits or more) of one in the cache.")
]


@app.command("list")
def show(cache_dir: CacheDirOption = None, as_json: JsonOption = False) -> None:
    """Print what is there, artifacts and packed weights, the one used longest ago first: it is the next to be evicted."""
    directory = _open(cache_dir)
    entries = sorted(
        (each for each in directory.entries() if each.kind is not EntryKind.PARTIAL),
        key=lambda each: (each.used_at_s, each.kind),
    )
    coming = sorted(directory.pins - {each.name for each in entries})
    if as_json:
        out.print_json(
            data=[*map(_fields, entries), *({"artifact_id": name, "pinned": True} for name in coming)]
        )
        return
    for entry in entries:
        marks = [mark for mark, holds in (("pinned", entry.is_pinned), ("in use", entry.is_held)) if holds]
        artifact_id, _, layout = entry.name.partition(".")
        marks = [*filter(None, [layout]), *marks]
        out.print(
            f"{artifact_id}  {entry.size_bytes:>15,} bytes  {_time(entry)}  {', '.join(marks)}".rstrip()
        )
    for name in coming:
        out.print(f"{name}  pinned, not there yet")
    out.print(f"{directory.used_bytes:,} bytes in all, {directory.free_bytes:,} free on the disk")


@app.command()
def pin(artifact_id: IdArgument, cache_dir: CacheDirOption = None) -> None:
    """Keep an artifact from eviction; a whole id also one that is yet to come."""
    directory = _open(cache_dir)
    directory.pin(_named(directory, artifact_id))


@app.command()
def unpin(artifact_id: IdArgument, cache_dir: CacheDirOption = None) -> None:
    """Let an artifact go when room is needed and nothing else was used longer ago."""
    directory = _open(cache_dir)
    directory.unpin(_named(directory, artifact_id))


def _open(cache_dir: Path | None) -> CacheDirectory:
    """The cache that a loader has made; none is made here, where it may become another user's."""
    chosen = cache_dir or default_cache_dir()
    if not (chosen / NAME).is_dir():
        raise CommandError(
            f"there is no cache in {chosen}: loaders make it when they fetch over HTTP, or pack weights; give --cache-dir as "
            "they have it"
        )
    try:
        return CacheDirectory.of(chosen)
    except OSError as fault:
        raise CommandError(
            f"the cache in {chosen} cannot be used: {fault.strerror}; give --cache-dir, or run this as the loaders' user"
        ) from None


def _named(directory: CacheDirectory, given: str) -> ArtifactId:
    """The id that `given` is, or is the beginning of."""
    if ARTIFACT_ID_PATTERN.fullmatch(given):
        return ArtifactId(given)
    known = directory.pins | {each.name for each in directory.entries() if each.is_artifact}
    artifact_id = completed(given, known)
    if artifact_id is None:
        raise CommandError(
            f"no artifact of the cache begins with {given!r} (8 digits or more); look at: halogen cache list"
        )
    return artifact_id


def _fields(entry: CacheEntry) -> dict[str, Any]:
    artifact_id, _, layout = entry.name.partition(".")
    return {
        "artifact_id": artifact_id,
        "layout": layout or None,
        "size_bytes": entry.size_bytes,
        "used_at": _time(entry),
        "pinned": entry.is_pinned,
        "in_use": entry.is_held,
    }


def _time(entry: CacheEntry) -> str:
    return dt.datetime.fromtimestamp(entry.used_at_s, dt.UTC).isoformat(timespec="seconds")
