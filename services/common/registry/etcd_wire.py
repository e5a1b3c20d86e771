"""Calls to etcd: endpoints with failover, TLS, tokens, deadlines; failures as errors of the tree.

Of the package `aetcd` only the compiled messages and stubs are used; this file and `etcd.py` alone know it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any, Final

import grpc
from aetcd import rpc
from grpc import StatusCode

from services.common import errors
from services.common.errors import Unavailable
from services.common.registry.store import LEASE_ENDED, Ambiguous

Metadata = tuple[tuple[str, str], ...]
Method = Callable[["Connection"], Callable[..., Any]]

RETRY_PAUSE_S: Final = 0.05
_CONNECT_TRY_S: Final = 0.5
_UNREACHED: Final = frozenset({StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED})
_NEVER_PROPOSED: Final = ("no leader", "failed to connect", "connection refused")
_OPTIONS: Final = [  # silence is given up within 8 s: a lease of 10 s is still renewed; etcd bears a ping per 5 s
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.ping_timeout_ms", 2_000),  # of pings that measure, too: none is sent while one is unanswered
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),  # a write sent twice unasked could not be told from two
]


class Compacted(Exception):
    """The history that was asked for is gone; read the present instead."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM bytes: the CA that signed etcd's certificate and, for mutual TLS, our own certificate and key."""

    ca: bytes
    cert: bytes | None = None
    key: bytes | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where etcd is and how it lets us in; no authentication where `user` is empty."""

    endpoints: tuple[str, ...]
    tls: Tls | None = None
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)


class Connection:
    """One endpoint's channel and stubs."""

    def __init__(self, endpoint: str, tls: Tls | None) -> None:
        self.endpoint = endpoint
        if tls:
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
            self.channel = grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)
        else:
            self.channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        self.kv: Any = rpc.KVStub(self.channel)
        self.leases: Any = rpc.LeaseStub(self.channel)
        self.watches: Any = rpc.WatchStub(self.channel)
        self.auth: Any = rpc.AuthStub(self.channel)

    async def ready(self, limit_s: float) -> bool:
        """Whether the connection stands within `limit_s` seconds."""
        if self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            return True
        try:
            await asyncio.wait_for(self.channel.channel_ready(), limit_s)
        except TimeoutError:
            return False
        return True


class EtcdWire:
    """Connections to all endpoints, one of them current; another becomes it when a call there fails.

    Args:
        access: Where etcd is.
        timeout_s: Bound on a call with all its tries.
        try_timeout_s: Bound on one try: a follower may hold a forwarded proposal for longer than 5 s.
    """

    def __init__(self, access: Access, *, timeout_s: float = 5.0, try_timeout_s: float = 1.5) -> None:
        self.try_timeout_s = try_timeout_s
        self.timeout_s = timeout_s
        self._access = access
        self._connections: dict[str, Connection] = {}
        self._index = random.randrange(len(access.endpoints))  # noqa: S311  # spreads load, guards nothing
        self._token = ""
        self._authenticating = asyncio.Lock()

    @property
    def token(self) -> str:
        """The latest token; empty before the first."""
        return self._token

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.channel.close()

    async def connect(self, limit_s: float) -> Connection:
        """A standing connection, to the current endpoint or else to the next that answers.

        Raises:
            Unavailable: None stood within `limit_s` seconds.
        """
        end = time.monotonic() + limit_s
        while True:
            connection = self._current()
            left_s = end - time.monotonic()
            if await connection.ready(max(0.0, min(left_s, _CONNECT_TRY_S))):
                return connection
            if left_s <= 0:
                raise _unreachable(self._access)
            self.leave(connection)

    def leave(self, failed: Connection) -> None:
        """Moves on to the next endpoint, unless another call that failed on the same one already has."""
        if self._endpoint() == failed.endpoint:
            self._index += 1

    async def metadata(self, connection: Connection, stale: str = "") -> Metadata:
        """What authenticates a call: nothing, or a token other than `stale`."""
        if not self._access.user:
            return ()
        async with self._authenticating:
            if not self._token or self._token == stale:
                request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
                response = await connection.auth.Authenticate(request, timeout=self.try_timeout_s)
                self._token = response.token
        return (("token", self._token),)

    async def call(
        self,
        method: Method,
        request: Any,
        *,
        writes: bool = False,
        limit_s: float | None = None,
        try_limit_s: float | None = None,
    ) -> Any:
        """Calls `method`, elsewhere or anew where that is safe, for at most `limit_s` seconds.

        Raises:
            Ambiguous: A write was sent and its answer was lost.
            Unavailable: No endpoint answered; a write was not applied.
            Compacted: The revision asked for is gone.
            HalogenError: etcd refused, see `refusal`.
        """
        end = time.monotonic() + (self.timeout_s if limit_s is None else limit_s)
        stale = ""
        while (left_s := end - time.monotonic()) > 0:
            connection = await self.connect(left_s)
            sent = False
            try:
                metadata = await self.metadata(connection, stale)
                sent = True
                timeout_s = min(left_s, try_limit_s or self.try_timeout_s)
                return await method(connection)(request, timeout=timeout_s, metadata=metadata)
            except grpc.aio.AioRpcError as failure:
                if is_stale(failure):
                    stale = self._token
                else:
                    self._excuse(failure, connection, ambiguous=writes and sent)
            await asyncio.sleep(RETRY_PAUSE_S)
        raise _unreachable(self._access)

    def _excuse(self, failure: grpc.aio.AioRpcError, connection: Connection, *, ambiguous: bool) -> None:
        """Returns when the call may be tried elsewhere, else raises what the failure means."""
        if failure.code() not in _UNREACHED:
            raise refusal(failure) from failure
        self.leave(connection)
        details = (failure.details() or "").lower()
        if ambiguous and not any(phrase in details for phrase in _NEVER_PROPOSED):
            raise Ambiguous("the registry's answer to a write was lost; read back") from failure

    def _endpoint(self) -> str:
        return self._access.endpoints[self._index % len(self._access.endpoints)]

    def _current(self) -> Connection:
        endpoint = self._endpoint()
        if endpoint not in self._connections:
            self._connections[endpoint] = Connection(endpoint, self._access.tls)
        return self._connections[endpoint]


def _unreachable(access: Access) -> Unavailable:
    return Unavailable(
        f"no etcd answers at {', '.join(access.endpoints)}; check that it runs, and its TLS settings",
        reason="REGISTRY_UNAVAILABLE",
        retry_after_s=1.0,
    )


def is_stale(failure: Exception) -> bool:
    """Whether a new token may help."""
    return (
        isinstance(failure, grpc.aio.AioRpcError)
        and failure.code() is StatusCode.UNAUTHENTICATED
        and "token" in (failure.details() or "")
    )


def refusal(failure: grpc.aio.AioRpcError) -> Exception:
    """What an answer of etcd's, other than its absence, means."""
    code, details = failure.code(), failure.details() or failure.code().name
    if code is StatusCode.OUT_OF_RANGE and "compacted" in details:
        return Compacted(details)
    if code is StatusCode.NOT_FOUND and "lease" in details:
        return errors.PreconditionFailed("the lease has ended; take a new one", reason=LEASE_ENDED)
    if code is StatusCode.RESOURCE_EXHAUSTED:
        message = f"etcd takes no more writes ({details}); compact and defragment it, or raise its quota"
        return errors.Overloaded(message, reason="REGISTRY_FULL", retry_after_s=10.0)
    if code is StatusCode.PERMISSION_DENIED:
        return errors.PermissionDenied("etcd does not allow this; give its user a role for the prefix")
    if code is StatusCode.UNAUTHENTICATED or "user name is empty" in details or "auth" in details:
        message = f"etcd does not accept us as a user ({details}); see --etcd-user, --etcd-password-file"
        return errors.Unauthenticated(message)
    return errors.InternalError(f"etcd refused: {details}", reason="REGISTRY_REFUSED")
