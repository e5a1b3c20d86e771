"""A channel whose calls say on whose behalf they are made: the trace, and the token."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from services.common.auth.bearer import Metadata, shown
from services.common.telemetry.tracing import outgoing


class AttributedChannel(grpc.aio.Channel):
    """Adds the current trace and the token to every call's metadata when the call is made, and is otherwise the channel
    within.

    grpc's client interceptors could do it, for a task per call and a generator round every message; its own call
    credentials want TLS, also on loopback.

    Args:
        channel: To the server.
        token: Tells what is shown; empty shows nothing.
    """

    def __init__(self, channel: grpc.aio.Channel, token: Callable[[], str]) -> None:
        self._channel = channel
        self._token = token

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
        return self._attributed(self._channel.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        return self._attributed(self._channel.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        return self._attributed(self._channel.stream_unary(*args, **options))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        return self._attributed(self._channel.stream_stream(*args, **options))

    def _attributed(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def attributed(*args: Any, metadata: Metadata = (), **options: Any) -> Any:
            return start(*args, metadata=(*metadata, *outgoing(), *shown(self._token())), **options)

        return attributed
