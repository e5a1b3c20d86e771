"""Follows every engine: its record in the registry, and its own word on its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

import structlog

from services.common.backoff import Backoff
from services.common.errors import HalogenError, InternalError
from services.common.ids import InstanceId
from services.common.pulse import Pulse, merged
from services.common.registry.records import EngineRecord
from services.common.registry.view import View
from services.scheduler.engine_instance import Contact, EngineInstance
from services.scheduler.fleet import Fleet
from services.scheduler.occupancy import Delta, Snapshot

FIRST_WORD_S: Final = 2.0
LOST_AFTER_S: Final = 2.0
RETRY_WITHIN_S: Final = 0.5  # a lost engine is known as such at most this much later

Watch = Callable[[str], AbstractAsyncContextManager[AsyncIterator[Snapshot | Delta]]]

log = structlog.get_logger()


class Settle(Protocol):
    """Told after every change; `engines_changed` when more than tickets did."""

    def __call__(self, *, engines_changed: bool = False) -> None: ...


class Engines:
    """Keeps a fleet as the registry and the engines themselves say it is.

    An instance whose lease has ended is kept, as stale, while its stream lives; a successor of the same name
    replaces it at once. A successor is known by its record, or, as the registry may be away, by its own word at the
    address of the record: that is read as the successor's until the registry has its own.

    Args:
        view: The engines' records.
        fleet: What is kept.
        watch: Opens an engine's occupancy stream, by address.
        settle: Told after every change.
    """

    def __init__(self, view: View[EngineRecord], fleet: Fleet, watch: Watch, settle: Settle) -> None:
        self._view = view
        self._fleet = fleet
        self._watch = watch
        self._settle = settle
        self._listeners: dict[InstanceId, asyncio.Task[None]] = {}
        self._restarts: dict[InstanceId, InstanceId] = {}  # of a record's instance: who answers in its place
        self._restarted = Pulse()
        self._pulse = Pulse()

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields after engines have come, gone or changed contact or residents."""
        return self._pulse.beats()

    async def follow(self) -> None:
        """Follows for ever."""
        beats = merged(self._view.changes(), self._restarted.beats())
        async with asyncio.TaskGroup() as group, contextlib.aclosing(beats) as changes:
            async for _ in changes:
                self._reconcile(group)

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        records = self._read()
        living = {record.id for record in records.values()}
        for instance in self._fleet:
            if record := records.pop(instance.instance_id, None):
                instance.register(record)
            else:
                self._miss(instance, is_replaced=instance.id in living)
        for record in records.values():
            instance = self._fleet.arrive(record)
            self._listeners[instance.instance_id] = group.create_task(self._attend(instance))
        self._changed(engines=True)

    def _read(self) -> dict[InstanceId, EngineRecord]:
        """The records, by the instances that they are of, as far as the registry and the engines know."""
        recorded = {record.instance_id: record for record in self._view.records.values()}
        self._restarts = {old: new for old, new in self._restarts.items() if old in recorded}
        read = {self._restarts.get(instance_id, instance_id): it for instance_id, it in recorded.items()}
        return {new: record.model_copy(update={"instance_id": new}) for new, record in read.items()}

    def _miss(self, instance: EngineInstance, *, is_replaced: bool) -> None:
        """The instance's record is gone."""
        if is_replaced or instance.contact is not Contact.HEARD:
            self._listeners[instance.instance_id].cancel()
        elif not instance.is_stale:
            log.warning("engine_stale", engine_id=instance.id, engine_instance_id=instance.instance_id)
            instance.is_stale = True

    async def _attend(self, instance: EngineInstance) -> None:
        """Listens to one instance, again and again, until it is gone from the registry."""
        names = {"engine_id": instance.id, "engine_instance_id": instance.instance_id}
        now, backoff = asyncio.get_running_loop().time, Backoff(most_s=RETRY_WITHIN_S)
        last_word = now()
        try:
            while not instance.is_stale:
                try:
                    await self._listen(instance, backoff)
                except (HalogenError, TimeoutError, ValueError) as failure:
                    log.warning("engine_unheard", **names, error=str(failure) or type(failure).__name__)
                if instance.contact is Contact.HEARD:
                    instance.advance(Contact.SILENT)
                    last_word = now()
                elif instance.contact is not Contact.LOST and now() - last_word > LOST_AFTER_S:
                    instance.advance(Contact.LOST)
                self._changed(engines=True)
                await backoff.pause()
        finally:
            self._listeners.pop(instance.instance_id)
            self._fleet.leave(instance)
            log.info("engine_gone", **names)
            self._changed(engines=True)

    async def _listen(self, instance: EngineInstance, backoff: Backoff) -> None:
        """Follows one stream to its end."""
        async with self._watch(instance.address) as events:
            async with asyncio.timeout(FIRST_WORD_S):
                first = await anext(events, None)
            if not isinstance(first, Snapshot):
                raise InternalError("the address answers without a snapshot")
            if first.engine_instance_id != instance.instance_id:
                self._note_restart(instance, first)
                return
            instance.begin(first)
            backoff.reset()
            self._changed(engines=True)
            async for event in events:
                if isinstance(event, Snapshot):  # the stream fell behind
                    instance.begin(event)
                else:
                    instance.follow(event)
                self._changed(engines=event.residents is not None)

    def _note_restart(self, instance: EngineInstance, heard: Snapshot) -> None:
        """Takes who answers at the instance's address for its successor, whom its record is read as from now on.

        Raises:
            InternalError: It is another engine, or the registry has withdrawn the record.
        """
        recorded = [record for record in self._view.records.values() if record.id == instance.id]
        if heard.engine_id != instance.id or not recorded:
            raise InternalError(
                "the address answers for another engine, or an instance that nobody registered"
            )
        log.info("engine_restarted", engine_id=instance.id, engine_instance_id=heard.engine_instance_id)
        self._restarts[recorded[0].instance_id] = heard.engine_instance_id
        self._restarted.beat()

    def _changed(self, *, engines: bool) -> None:
        self._settle(engines_changed=engines)
        if engines:
            self._pulse.beat()
