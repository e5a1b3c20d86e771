"""A gapless watch on etcd: the events of a key range from one revision on, across reconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import grpc
import structlog
from aetcd import rpc

from services.common.backoff import Backoff
from services.common.errors import HalogenError
from services.common.registry.etcd_wire import EtcdWire, is_stale

log = structlog.get_logger()


class KeyRange(NamedTuple):
    """All keys from `start` up to, not including, `end`."""

    start: bytes
    end: bytes

    @classmethod
    def under(cls, prefix: bytes) -> KeyRange:
        """The keys that begin with `prefix`; all keys when it is empty."""
        head = prefix.rstrip(b"\xff")
        return cls(prefix or b"\0", head[:-1] + bytes([head[-1] + 1]) if head else b"\0")


async def follow(wire: EtcdWire, keys: KeyRange, position: int) -> AsyncGenerator[Sequence[Any], None]:
    """Yields etcd's events from revision `position` on; ends at a gap that cannot be replayed.

    It resumes after the last event's revision, never after a header's: that one runs ahead in a replay.
    """
    backoff, stale = Backoff(), ""
    while True:
        try:
            async with contextlib.aclosing(_responses(wire, keys, position, stale)) as responses:
                async for response in responses:
                    if _is_gap(response, position):
                        return
                    if response.canceled:  # etcd 3.5.1 says "permission denied" of a stale token, too
                        log.warning("registry_watch_refused", why=response.cancel_reason)
                        stale = wire.token
                        break
                    backoff.reset()
                    if response.events:
                        position = response.events[-1].kv.mod_revision + 1
                        yield response.events
        except (grpc.aio.AioRpcError, HalogenError, TimeoutError) as failure:
            why = failure.details() if isinstance(failure, grpc.aio.AioRpcError) else str(failure)
            log.warning("registry_watch_broken", error=why)
            stale = wire.token if is_stale(failure) else ""
        await backoff.pause()


async def _responses(wire: EtcdWire, keys: KeyRange, position: int, stale: str) -> AsyncGenerator[Any, None]:
    """One stream's messages, until it breaks."""
    create = rpc.WatchCreateRequest(key=keys.start, range_end=keys.end, start_revision=position)
    connection = await wire.connect(wire.timeout_s)
    call = None
    try:
        metadata = await wire.metadata(connection, stale)
        call = connection.watches.Watch(metadata=(*metadata, ("hasleader", "true")))
        async with asyncio.timeout(wire.try_timeout_s):
            await call.write(rpc.WatchRequest(create_request=create))
            response = await call.read()
        while response is not grpc.aio.EOF:
            yield response
            response = await call.read()
    except (grpc.aio.AioRpcError, TimeoutError):
        wire.leave(connection)
        raise
    finally:
        if call is not None:
            call.cancel()


def _is_gap(response: Any, position: int) -> bool:
    """Whether history was compacted past `position`, or the store is behind it: restored, or made anew."""
    return bool(response.compact_revision) or (response.created and response.header.revision < position - 1)
