"""The registry of models outside of halogen, over HTTP: told of one commit at a time."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import aiohttp

from services.common.daemon_resolver import DaemonResolver
from services.common.errors import PreconditionFailed, Unavailable
from services.common.http_credentials import token_in, trusted
from services.common.ids import ModelName, Revision
from services.common.model_registry_config import CA_SETTING, TOKEN_SETTING, ModelRegistryConfig

_PASSING: Final = frozenset({408, 425, 429})  # of 4xx, those that another try may help


class ModelRegistry:
    """The registry; a scope, which begins without a word to it.

    Nothing of an answer is read but its status, no redirect is followed, and the token goes nowhere else. The files
    that settings name are read with each document: one that is missing keeps no scheduler from its work.

    Args:
        config: Where it is; its URL is not empty.
    """

    def __init__(self, config: ModelRegistryConfig) -> None:
        self._config = config

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, force_close=True, resolver=DaemonResolver()),
            timeout=aiohttp.ClientTimeout(total=self._config.timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def put(self, model: ModelName, revision: Revision, document: bytes) -> None:
        """Returns once the registry has taken the document; to send it again changes nothing there.

        Raises:
            Unavailable: It does not answer in time, or says that it cannot now.
            PreconditionFailed: It refuses, and would again; or the certificates or the token cannot be read.
        """
        headers, tls = self._headers(document), trusted(self._config.ca_file, CA_SETTING)
        url = self._config.base.joinpath("models", model, "revisions", str(revision))
        with self._answering():
            async with self._session.put(
                url, data=document, headers=headers, ssl=tls, allow_redirects=False
            ) as response:
                status = response.status
                response.close()  # its body is nobody's
        _check(status)

    def _headers(self, document: bytes) -> dict[str, str]:
        """With the digest of RFC 9530, so that the registry can tell the same document from another."""
        digest = base64.b64encode(hashlib.sha256(document).digest()).decode()
        headers = {"Content-Type": "application/json", "Content-Digest": f"sha-256=:{digest}:"}
        token = token_in(self._config.token_file, TOKEN_SETTING)
        return {**headers, "Authorization": f"Bearer {token}"} if token else headers

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as failure:
            raise Unavailable(
                f"the registry of models does not answer within {self._config.timeout_s:g} s; see that it runs, and "
                "is what --registry.url names",
                reason="PUSH_TIMED_OUT",
            ) from failure
        except (aiohttp.ClientError, OSError) as failure:
            raise Unavailable(
                f"the registry of models cannot be reached ({type(failure).__name__}); see that it runs, and is what "
                "--registry.url names",
                reason="PUSH_UNREACHABLE",
            ) from failure


def _check(status: int) -> None:
    if 200 <= status < 300:
        return
    if status >= 500 or status in _PASSING:
        raise Unavailable(
            f"the registry of models answers {status}; see its own log", reason="PUSH_NOT_TAKEN"
        )
    if 300 <= status < 400:
        raise PreconditionFailed(
            f"the registry of models redirects ({status}), which is not followed; give --registry.url the URL that it "
            "redirects to",
            reason="PUSH_REDIRECTED",
        )
    raise PreconditionFailed(
        f"the registry of models refuses it ({status}); see what --registry.url and --registry.token-file name, then: "
        "halogen push",
        reason="PUSH_REFUSED",
    )
