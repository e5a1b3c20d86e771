"""A scheduler's life, from its start to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from halogen.v1 import scheduler_pb2_grpc
from services.common.background import background
from services.common.lifecycle import Stop
from services.common.metrics import fresh_registry, version
from services.common.probes import Probes
from services.common.process import Identity, Started
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.records import EngineRecord, GatewayRecord, SchedulerRecord, Serving, Target
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.common.registry.view import View
from services.common.rpc.server import RpcServer
from services.common.ticket import TicketSigner
from services.scheduler.admission import Admission
from services.scheduler.admission_queue import AdmissionQueue
from services.scheduler.config import SchedulerConfig
from services.scheduler.engines import Engines
from services.scheduler.fleet import Fleet
from services.scheduler.leadership import Leadership
from services.scheduler.metrics import SchedulerMetrics, export_live, export_pushes
from services.scheduler.occupancy_client import watch_occupancy
from services.scheduler.registry_push import pushing
from services.scheduler.rollout_writer import RolloutWriter
from services.scheduler.rollout_writer import Views as RolloutViews
from services.scheduler.servicer import SchedulerServicer
from services.scheduler.ticket_desk import TicketDesk

SERVICES: Final = ("halogen.v1.SchedulerService",)

Views = Iterable[View[Any]]


async def serve(config: SchedulerConfig, store: Store, stop: Stop, started: Started) -> None:
    """Serves until `stop` is asked for; resigns first, so that another leads while this one finishes."""
    async with contextlib.AsyncExitStack() as scope:
        server = RpcServer(SERVICES, config.slow_reader_s, config.door)
        contact = RegistryContact()
        registry = fresh_registry(config.role, version(), server, contact)
        http = await scope.enter_async_context(Probes(config.http_listen, server.readiness, registry))
        serving = await scope.enter_async_context(
            View(store, keys.SERVING, Serving, keeps=True, contact=contact)
        )
        desk = scope.enter_context(TicketDesk(_admission(config, serving.records)))
        targets = await scope.enter_async_context(
            View(store, keys.TARGETS, Target, keeps=True, contact=contact)
        )
        gateways = await scope.enter_async_context(View(store, keys.GATEWAYS, GatewayRecord))
        records = await scope.enter_async_context(View(store, keys.ENGINES, EngineRecord))
        engines = Engines(
            records, desk.admission.fleet, functools.partial(watch_occupancy, config.credentials), desk.settle
        )
        await scope.enter_async_context(background(engines.follow()))
        export_live(registry, desk.admission)
        signer = TicketSigner.from_file(config.ticket_key_file)
        servicer = SchedulerServicer(desk, signer, SchedulerMetrics(registry))
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server.grpc_server)
        bound = await server.start(config.listen)
        scope.push_async_callback(server.stop, config.drain_s, config.grace_s)
        identity = dataclasses.asdict(Identity.of(config, bound, http.bound))
        record = SchedulerRecord(**identity, pushes=bool(config.registry.url))
        registration = Registration(store, keys.scheduler(record.id), config.lease_ttl_s, record, contact)
        await scope.enter_async_context(registration)
        views = RolloutViews(targets, serving, records, gateways)
        await scope.enter_async_context(background(_report(engines, desk, server, views)))
        writer = RolloutWriter(store, views, config.commit_timeout_s, config.sync_status)
        push = await scope.enter_async_context(pushing(store, config.registry))
        export_pushes(registry, push)
        leadership = Leadership(desk, writer, registration, push)
        await scope.enter_async_context(background(_seek(leadership, store, config, engines, views)))
        scope.callback(server.readiness.end)  # first of all; then it resigns, and its record is withdrawn
        started(bound)
        await stop.wait()


def _admission(config: SchedulerConfig, serving: Mapping[str, Serving]) -> Admission:
    queue = AdmissionQueue(max_requests=config.queue_requests, max_prompt_tokens=config.queue_prompt_tokens)
    return Admission(Fleet(config.bounds), queue, config.limits, serving)


async def _seek(
    leadership: Leadership, store: Store, config: SchedulerConfig, engines: Engines, views: Views
) -> None:
    """Stands for election as soon as this scheduler could do the work."""
    await _warm(engines, views)
    await leadership.seek(store, config.election_ttl_s)


async def _report(engines: Engines, desk: TicketDesk, server: RpcServer, views: Views) -> None:
    """Tells health clients whether this scheduler could lead: the registry is read, and an engine is heard."""
    await _warm(engines, views)
    async with contextlib.aclosing(engines.changes()) as changes:
        async for _ in changes:
            server.readiness.set("" if desk.admission.fleet.is_heard else "no engine is heard")


async def _warm(engines: Engines, views: Views) -> None:
    """Returns when the registry has been read, and the engines that it names are being listened to."""
    for view in views:
        await view.synced()
    async with contextlib.aclosing(engines.changes()) as changes:
        await anext(changes)
