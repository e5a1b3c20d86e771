"""An artifact store that is read over HTTP: the files of every artifact below its id, as in a directory."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp
import structlog
from yarl import URL

from services.common.backoff import Backoff
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, ManifestFile
from services.common.checkpoint.signatures import MAX_SIGNATURES_BYTES, SIGNATURES_NAME
from services.common.daemon_resolver import DaemonResolver
from services.common.errors import CorruptData, PreconditionFailed
from services.common.http_credentials import trusted
from services.common.ids import ArtifactId
from services.loader.http_file import HttpFile, breaking_off
from services.loader.patience import BrokenOff, Patience
from services.loader.range_answer import RangeAnswer

_MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How a store is asked.

    Attributes:
        ca_file: Certificates to trust instead of the system's (PEM).
        ca_setting: The setting that names them.
        token: Sent as a bearer token to the store itself, never to where it redirects; none when empty.
        timeout_s: A request that brings no byte for so long is broken off.
        tries: So many requests in a row that break off are too many.
        first_pause_s: Before the second try; it doubles up to `most_pause_s`.
    """

    ca_file: Path | None = None
    ca_setting: str = "--store-ca-file"
    token: str = ""
    timeout_s: float = 30.0
    tries: int = 6
    first_pause_s: float = 0.1
    most_pause_s: float = 5.0


class HttpStore:
    """The store; a scope.

    Args:
        base: Its URL, as `store_url` gives it.
    """

    def __init__(self, base: URL, options: HttpOptions = HttpOptions()) -> None:
        self._base = base
        self._options = options

    async def __aenter__(self) -> Self:
        """Raises PreconditionFailed where the certificates cannot be read."""
        timeout = aiohttp.ClientTimeout(
            sock_connect=self._options.timeout_s, sock_read=self._options.timeout_s
        )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=trusted(self._options.ca_file, self._options.ca_setting),
                resolver=DaemonResolver(),
            ),
            timeout=timeout,
            headers={"Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def patience(self) -> Patience:
        """For one sequence of requests."""
        options = self._options
        return Patience(options.tries, options.first_pause_s, options.most_pause_s)

    def backoff(self) -> Backoff:
        """Pauses between two tries at a file that changes."""
        return Backoff(self._options.first_pause_s, self._options.most_pause_s)

    def file(self, artifact_id: ArtifactId, file: ManifestFile) -> HttpFile:
        """One file of an artifact."""
        return HttpFile(self._url(artifact_id, file.path), file, self.get)

    async def manifest(self, artifact_id: ArtifactId) -> Manifest:
        """The manifest that the id names.

        Raises:
            NotFound: The store does not have it.
            CorruptData: The store has another one there.
            PreconditionFailed: The store does not let this loader have it.
            Unavailable: The store cannot be reached.
        """
        text = await self._whole(artifact_id, MANIFEST_NAME, MAX_MANIFEST_BYTES)
        if sha256_hex(text) != artifact_id:
            raise CorruptData(
                f"{MANIFEST_NAME} of artifact {artifact_id} is another artifact's; upload the artifact again"
            )
        return Manifest.decode(text)

    async def signatures(self, artifact_id: ArtifactId) -> bytes:
        """The content of an artifact's file of signatures, as far as it may be long; raises what `manifest` does."""
        return await self._whole(artifact_id, SIGNATURES_NAME, MAX_SIGNATURES_BYTES)

    async def _whole(self, artifact_id: ArtifactId, name: str, most_bytes: int) -> bytes:
        """A file without a size of its own, at most one byte too long."""
        patience = self.patience()
        while True:
            try:
                return await self._try_whole(
                    self._url(artifact_id, name), f"{name} of {artifact_id}", most_bytes
                )
            except BrokenOff as failure:
                await patience.after(failure)

    async def _try_whole(self, url: URL, what: str, most_bytes: int) -> bytes:
        content = bytearray()
        async with self.get(url, {}) as response:
            answer = RangeAnswer.of(response.status, response.headers, what)
            with breaking_off():
                while len(content) <= most_bytes and (
                    piece := await response.content.read(most_bytes + 1 - len(content))
                ):
                    content += piece
        if answer.total_bytes is not None and len(content) < min(answer.total_bytes, most_bytes):
            raise BrokenOff("it ends too early")
        return bytes(content)

    @contextlib.asynccontextmanager
    async def get(self, url: URL, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request and the redirects that it leads to, none of them to another scheme.

        Raises:
            BrokenOff: Nobody answered.
            PreconditionFailed: It redirects to another scheme, or on and on.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            async with self._request(url, headers) as response:
                if response.status not in _REDIRECTS:
                    yield response
                    return
                url = redirected(url, response.headers.get("Location", ""))
        raise PreconditionFailed(
            f"the store redirects more than {_MAX_REDIRECTS} times; give --store the URL that it redirects to",
            reason="STORE_REDIRECTS",
        )

    @contextlib.asynccontextmanager
    async def _request(self, url: URL, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        own = {"Authorization": f"Bearer {self._options.token}"} if self._is_trusted(url) else {}
        log.debug("store_request", url=str(url), range=headers.get("Range", ""))
        with breaking_off():
            response = await self._session.get(url, headers={**headers, **own}, allow_redirects=False)
        async with response:
            try:
                yield response
            finally:
                if not response.content.at_eof():
                    response.close()  # the rest is not wanted

    def _is_trusted(self, url: URL) -> bool:
        return bool(self._options.token) and url.origin() == self._base.origin()

    def _url(self, artifact_id: ArtifactId, path: str) -> URL:
        return self._base.joinpath(artifact_id, *path.split("/"))


def redirected(url: URL, location: str) -> URL:
    """Where a redirect of `url` leads; raises PreconditionFailed if that is of another scheme or nowhere."""
    try:
        target = (
            url.join(URL(location, encoded=True)) if location else URL()
        )  # a signature in it stays as it is
    except ValueError:
        target = URL()
    if target.scheme != url.scheme or not target.host:
        raise PreconditionFailed(
            f"the store redirects from {url.scheme} to {target.scheme or 'nowhere'}, which is not followed; "
            "give --store the URL that it redirects to",
            reason="STORE_REDIRECTS",
        )
    return target
