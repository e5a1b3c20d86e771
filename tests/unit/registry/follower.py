"""Somebody who follows one prefix of a registry."""

from __future__ import annotations

import asyncio
import contextlib

from services.common.registry.store import Change, Changes, Snapshot, Store


class Follower:
    """All that one watch told, and the moment when a certain value came."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.snapshots: list[Snapshot] = []
        self.synced = asyncio.Event()
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()

    async def follow(self, store: Store) -> None:
        async with contextlib.aclosing(store.watch("w/")) as messages:
            async for message in messages:
                if isinstance(message, Changes):
                    self.changes += message.changes
                    self.changed.set()
                else:
                    self.snapshots.append(message)
                    self.synced.set()
                if any(change.key == "w/end" for change in self.changes):
                    self.ended.set()
