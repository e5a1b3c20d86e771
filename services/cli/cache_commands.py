"""`halogen cache`: the artifacts that a host's loaders have fetched over HTTP, and which of them are to stay."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.console import CommandError, out
from services.cli.options import JsonOption
from services.common.cache_dir import default_cache_dir
from services.common.checkpoint.cache_directory import CacheDirectory
from services.common.checkpoint.cache_entry import CacheEntry
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId

app = typer.Typer(
    help="The cache of this host's loaders, for artifacts that come over HTTP.", no_args_is_help=True
)

CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir", envvar="HALOGEN_CACHE_DIR", help="What the loaders were told; theirs by default."
    ),
]
IdArgument = Annotated[
    str, typer.Argument(help="An artifact's id, or the beginning of one that is in the cache.")
]


@app.command("list")
def show(cache_dir: CacheDirOption = None, as_json: JsonOption = False) -> None:
    """Print the artifacts that are there, the one used longest ago first: it is the next to be evicted."""
    directory = _open(cache_dir)
    entries = sorted(
        (each for each in directory.entries() if each.is_artifact), key=lambda each: each.used_at_s
    )
    coming = sorted(directory.pins - {each.name for each in entries})
    if as_json:
        out.print_json(
            data=[*map(_fields, entries), *({"artifact_id": name, "pinned": True} for name in coming)]
        )
        return
    for entry in entries:
        marks = [mark for mark, holds in (("pinned", entry.is_pinned), ("in use", entry.is_held)) if holds]
        out.print(f"{entry.name}  {entry.size_bytes:>15,} bytes  {_time(entry)}  {', '.join(marks)}".rstrip())
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
    chosen = cache_dir or default_cache_dir()
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
    matching = sorted(name for name in known if given and name.startswith(given))
    if len(matching) != 1:
        found = (
            f"{len(matching)} artifacts of the cache begin" if matching else "no artifact of the cache begins"
        )
        raise CommandError(f"{found} with {given!r}; look at: halogen cache list")
    return ArtifactId(matching[0])


def _fields(entry: CacheEntry) -> dict[str, Any]:
    return {
        "artifact_id": entry.name,
        "size_bytes": entry.size_bytes,
        "used_at": _time(entry),
        "pinned": entry.is_pinned,
        "in_use": entry.is_held,
    }


def _time(entry: CacheEntry) -> str:
    return dt.datetime.fromtimestamp(entry.used_at_s, dt.UTC).isoformat(timespec="seconds")
