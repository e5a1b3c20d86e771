"""Channels to our own servers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from services.common.rpc.options import CLIENT_OPTIONS
from services.common.rpc.traced_channel import TracedChannel


def connect(address: str) -> grpc.aio.Channel:
    """A channel to ``host:port`` with the system's options; close it, or use it as a context manager.

    A host name may stand for several addresses: the channel uses one that answers, and looks the name up again
    when that one is gone.
    """
    return TracedChannel(grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS))


class ChannelPool:
    """One channel per address for as long as the pool lives: engines come and go, connections are kept."""

    def __init__(self) -> None:
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
            self._channels[address] = connect(address)
        return self._channels[address]
