"""Channels to our own servers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from services.common.auth.tls import CallerTls
from services.common.rpc.attributed_channel import AttributedChannel
from services.common.rpc.credentials import NO_CREDENTIALS, Credentials
from services.common.rpc.endpoint import Endpoint, Peer
from services.common.rpc.options import CLIENT_OPTIONS


def connect(peer: Peer) -> grpc.aio.Channel:
    """A channel to a server with the system's options; close it, or use it as a context manager.

    A host name may stand for several addresses: the channel uses one that answers, and looks the name up again
    when that one is gone.
    """
    address, credentials = Endpoint.of(peer)
    channel = (
        _secure_channel(address, credentials.tls)
        if credentials.tls
        else grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    )
    return AttributedChannel(channel, credentials.token)


def _secure_channel(address: str, tls: CallerTls) -> grpc.aio.Channel:
    own = (tls.own.key, tls.own.certificates) if tls.own else (None, None)
    named = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    credentials = grpc.ssl_channel_credentials(tls.ca, *own)
    return grpc.aio.secure_channel(address, credentials, options=[*CLIENT_OPTIONS, *named])


class ChannelPool:
    """One channel per address for as long as the pool lives: engines come and go, connections are kept.

    Args:
        credentials: Shown to all of them.
    """

    def __init__(self, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._credentials = credentials
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    def get(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = connect(Endpoint(address, self._credentials))
        return self._channels[address]
