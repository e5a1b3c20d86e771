"""A small file from a store into the cache, whole and verified, or not at all."""

from __future__ import annotations

from services.common.checkpoint.manifest import ManifestFile
from services.common.checkpoint.verified_artifact import verify_small
from services.common.errors import CorruptData
from services.common.stoppable import in_thread
from services.loader.fetch import Fetch


async def download_small(file: ManifestFile, fetch: Fetch) -> None:
    """Returns once the file is there.

    Raises:
        CorruptData: It came wrong twice.
        Unavailable: The store fails again and again.
        OtherVersion: The file changed in it.
        HalogenError: As `RemoteFile.open` says.
    """
    content = await fetch.read(0, file.size_bytes)
    try:
        verify_small(content, file)
    except CorruptData:  # perhaps it was spoilt on its way: once more
        content = verify_small(await fetch.read(0, file.size_bytes), file)
    await in_thread(lambda: fetch.partial.write(0, content))
