"""A channel whose calls carry the trace of whoever makes them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from services.common.telemetry.tracing import outgoing


class TracedChannel(grpc.aio.Channel):
    """Adds the current trace to every call's metadata when the call is made, and is otherwise the channel within.

    grpc's client interceptors could do it, for a task per call and a generator round every message.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._channel.__aexit__(kind, value, trace)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        return _traced(self._channel.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return _traced(self._channel.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return _traced(self._channel.stream_unary(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return _traced(self._channel.stream_stream(*args, **options))


def _traced(start: Callable[..., Any]) -> Callable[..., Any]:
    def traced(*args: Any, metadata: tuple[tuple[str, str | bytes], ...] = (), **options: Any) -> Any:
        return start(*args, metadata=(*metadata, *outgoing()), **options)

    return traced
