"""The gateway's life, from its configuration to its end."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from halogen.v1 import control_pb2_grpc, inference_pb2_grpc
from services.common.background import background
from services.common.checkpoint_health import checkpoint_health
from services.common.health_check import Checked
from services.common.host_memory import HostMemory
from services.common.lifecycle import Stop
from services.common.metrics import fresh_registry, version
from services.common.probes import Probes
from services.common.process import Identity, Started
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.leader_records import LeaderRecord
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    LoaderRecord,
    Serving,
    Target,
)
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.common.registry.view import View
from services.common.rpc.client import ChannelPool
from services.common.rpc.server import RpcServer
from services.gateway.catalog import Catalog
from services.gateway.cohort_health import cohort_healths
from services.gateway.completion import Completions
from services.gateway.config import GatewayConfig
from services.gateway.contexts import Contexts
from services.gateway.control import Control
from services.gateway.control_servicer import ControlServicer
from services.gateway.engine_client import EngineClients
from services.gateway.engine_offers import EngineOffers
from services.gateway.history import History
from services.gateway.leader import Leaders
from services.gateway.loader_client import LoaderFiles
from services.gateway.loaders import Loaders
from services.gateway.metrics import GatewayMetrics, export_live
from services.gateway.report import Report
from services.gateway.running import Running
from services.gateway.scheduler_client import SchedulerClient
from services.gateway.servicer import InferenceServicer
from services.gateway.status import StatusViews
from services.gateway.text_model import TextModelReader
from services.gateway.ticket_returns import TicketReturns
from services.gateway.verifier import LoaderVerifier

SERVICES: Final = ("halogen.v1.InferenceService", "halogen.v1.ControlService")


class Facts(NamedTuple):
    """What etcd tells a gateway, followed."""

    targets: View[Target]
    serving: View[Serving]
    loaders: View[LoaderRecord]
    engines: View[EngineRecord]
    leader: View[LeaderRecord]
    status: StatusViews


async def serve(config: GatewayConfig, store: Store, stop: Stop, started: Started) -> None:
    """Serves until `stop` is asked for, then finishes what runs."""
    async with AsyncExitStack() as scope:
        server = RpcServer(SERVICES, config.slow_reader_s, config.door)
        contact = RegistryContact()
        registry = fresh_registry(config.role, version(), server, contact)
        facts = await scope.enter_async_context(_followed(store, contact))
        checks = {"checkpoint": lambda: _checkpoint_check(facts.status, server, contact)}
        http = await scope.enter_async_context(Probes(config.http_listen, server.readiness, registry, checks))
        channels = await scope.enter_async_context(ChannelPool(config.credentials))
        loaders = Loaders(facts.loaders)
        files = LoaderFiles(channels, loaders)
        catalog = Catalog(facts.targets, facts.serving, files, TextModelReader(config.max_prompt_bytes))
        await scope.enter_async_context(background(catalog.follow()))
        await scope.enter_async_context(
            _inference(config, server, registry, channels=channels, facts=facts, catalog=catalog)
        )
        offers = EngineOffers(facts.engines.records)
        verifier = LoaderVerifier(channels, loaders, lambda: offers.layouts)
        _add_control(config, server, store, facts, verifier=verifier, files=files)
        bound = await server.start(config.listen)
        scope.push_async_callback(server.stop, config.drain_s, config.grace_s)
        record = GatewayRecord(**dataclasses.asdict(Identity.of(config, bound, http.bound)))
        registration = Registration(store, keys.gateway(record.id), config.lease_ttl_s, record, contact)
        await scope.enter_async_context(registration)
        report = Report(catalog, facts.engines, registration, server.readiness)
        await scope.enter_async_context(background(report.follow()))
        scope.callback(server.readiness.end)  # first of all, while the record is withdrawn
        started(bound)
        await stop.wait()


@asynccontextmanager
async def _followed(store: Store, contact: RegistryContact) -> AsyncIterator[Facts]:
    async with (
        View(store, keys.TARGETS, Target, keeps=True, contact=contact) as targets,
        View(store, keys.SERVING, Serving, keeps=True, contact=contact) as serving,
        View(store, keys.LOADERS, LoaderRecord) as loaders,
        View(store, keys.ENGINES, EngineRecord) as engines,
        View(store, keys.LEADER, LeaderRecord) as leader,
        StatusViews(
            store, contact, targets=targets, serving=serving, loaders=loaders, engines=engines
        ) as status,
    ):
        yield Facts(targets, serving, loaders, engines, leader, status)


@asynccontextmanager
async def _inference(
    config: GatewayConfig,
    server: RpcServer,
    registry: CollectorRegistry,
    *,
    channels: ChannelPool,
    facts: Facts,
    catalog: Catalog,
) -> AsyncIterator[None]:
    """InferenceService on the server; tickets that are left over at the end are given back."""
    running, metrics = Running(config.max_concurrent_requests), GatewayMetrics(registry)
    export_live(
        registry,
        in_flight=lambda: len(running),
        targets=facts.targets.records,
        serving=facts.serving.records,
    )
    scheduler, contexts = SchedulerClient(channels, Leaders(facts.leader)), Contexts(facts.engines.records)
    async with TicketReturns(scheduler) as returns:
        completions = Completions(
            catalog=catalog,
            contexts=contexts,
            scheduler=scheduler,
            engines=EngineClients(channels),
            running=running,
            returns=returns,
            limits=config.limits,
            metrics=metrics,
        )
        servicer = InferenceServicer(completions, catalog, contexts, running, metrics)
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc_server)
        yield


def _add_control(
    config: GatewayConfig,
    server: RpcServer,
    store: Store,
    facts: Facts,
    *,
    verifier: LoaderVerifier,
    files: LoaderFiles,
) -> None:
    """ControlService on the server."""
    views = facts.status
    control = Control.on(
        store,
        verifier.verify,
        known=views.last_revision,
        check_plan=EngineOffers(facts.engines.records).check,
        trust=config.trust,
        leader=lambda: views.leader,
    )
    servicer = ControlServicer(control, views, History(store, views), config.process_id, files.describe)
    control_pb2_grpc.add_ControlServiceServicer_to_server(servicer, server.grpc_server)


def _checkpoint_check(views: StatusViews, server: RpcServer, contact: RegistryContact) -> Checked:
    readiness = server.readiness
    return checkpoint_health(
        cohort_healths(views.read(), readiness.names, dt.datetime.now(dt.UTC)),
        HostMemory().bounds(),
        missing=readiness.missing,
        stale=contact.stale,
    )
