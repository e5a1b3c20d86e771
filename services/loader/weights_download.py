"""A weight file from a store into the cache: header first, then every block that is not there, each verified."""

from __future__ import annotations

import threading

import structlog

from services.common.checkpoint.digest import block_digest
from services.common.checkpoint.header import PREAMBLE, Header, header_bytes
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.verified_artifact import check_header, check_scales
from services.common.errors import HalogenError
from services.common.stoppable import in_thread, run_stoppable
from services.loader.block_download import BlockDownload
from services.loader.block_runs import plan_runs
from services.loader.fetch import Fetch

log = structlog.get_logger()


async def download_weights(manifest: Manifest, fetch: Fetch) -> None:
    """Returns once all of the weights are there, every byte of them verified.

    What an earlier try has left is digested anew, and stays where it is right.

    Raises:
        CorruptData: The header is not the manifest's, or a block came wrong twice.
        Unavailable: The store fails again and again.
        OtherVersion: The file changed in it.
        HalogenError: As `RemoteFile.open` says.
    """
    header = await _header(manifest, fetch)
    missing = await run_stoppable(lambda stop: missing_blocks(header, fetch, stop), lambda _: None)
    runs = plan_runs(missing, ranged=fetch.remote.takes_ranges)
    log.info("fetch_planned", blocks=len(header.digests), missing=len(missing), requests=len(runs))
    download = BlockDownload(header, frozenset(missing), runs, fetch)
    fetch.progress(header.data_bytes - download.total_bytes)
    await download.run()
    await in_thread(lambda: _check_scales(header, fetch))


def missing_blocks(header: Header, fetch: Fetch, stop: threading.Event) -> list[int]:
    """The blocks that are not in the partial file, or not right, as far as it comes until `stop` is set."""
    missing: list[int] = []
    for index, digest in enumerate(header.digests):
        if stop.is_set():
            break
        begin, end = header.block_extent(index)
        if not (
            fetch.partial.has_data(begin, end) and block_digest(fetch.partial.read(begin, end)) == digest
        ):
            missing.append(index)
    return missing


async def _header(manifest: Manifest, fetch: Fetch) -> Header:
    """The header that is there, else the store's, which is then there. The store is asked in any case."""
    start = await fetch.read(0, PREAMBLE.size)
    kept = await in_thread(lambda: _kept_header(manifest, fetch))
    if kept is not None:
        fetch.progress(kept.data_offset - PREAMBLE.size)
        return kept
    rest = await fetch.read(PREAMBLE.size, header_bytes(start))
    return await in_thread(lambda: _take_header(manifest, fetch, start + rest))


def _check_scales(header: Header, fetch: Fetch) -> None:
    with fetch.partial.path.open("rb") as weights:
        check_scales(weights, header)


def _kept_header(manifest: Manifest, fetch: Fetch) -> Header | None:
    try:
        extent = header_bytes(fetch.partial.read(0, PREAMBLE.size))
        header = Header.decode(fetch.partial.read(0, extent))
        check_header(header, manifest)
    except HalogenError:
        return None
    return header


def _take_header(manifest: Manifest, fetch: Fetch, encoded: bytes) -> Header:
    header = Header.decode(encoded)
    check_header(header, manifest)
    fetch.partial.write(0, encoded)
    return header
