"""The gateway's life, from its configuration to its end."""

from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from typing import Final

from halogen.v1 import control_pb2_grpc, inference_pb2_grpc
from services.common.background import background
from services.common.lifecycle import Stop
from services.common.metrics import fresh_registry, version
from services.common.probes import Probes
from services.common.process import Identity, Started
from services.common.registry import keys
from services.common.registry.records import (
    EngineRecord,
    GatewayRecord,
    LeaderRecord,
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
from services.gateway.completion import Completions
from services.gateway.config import GatewayConfig
from services.gateway.control import Control
from services.gateway.control_servicer import ControlServicer
from services.gateway.engine_client import EngineClients
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


async def serve(config: GatewayConfig, store: Store, stop: Stop, started: Started) -> None:
    """Serves until `stop` is asked for, then finishes what runs."""
    async with AsyncExitStack() as scope:
        server = RpcServer(SERVICES, config.slow_reader_s)
        registry = fresh_registry(config.role, version(), server.readiness, server.in_flight)
        http = await scope.enter_async_context(Probes(config.http_listen, server.readiness, registry))
        channels = await scope.enter_async_context(ChannelPool())
        targets = await scope.enter_async_context(View(store, keys.TARGETS, Target, keeps=True))
        serving = await scope.enter_async_context(View(store, keys.SERVING, Serving, keeps=True))
        loader_records = await scope.enter_async_context(View(store, keys.LOADERS, LoaderRecord))
        engine_records = await scope.enter_async_context(View(store, keys.ENGINES, EngineRecord))
        leader_records = await scope.enter_async_context(View(store, keys.LEADER, LeaderRecord))
        loaders = Loaders(loader_records)
        files = LoaderFiles(channels, loaders)
        catalog = Catalog(targets, serving, files, TextModelReader(config.max_prompt_bytes))
        await scope.enter_async_context(background(catalog.follow()))
        scheduler = SchedulerClient(channels, Leaders(leader_records))
        returns = await scope.enter_async_context(TicketReturns(scheduler))
        running, metrics = Running(), GatewayMetrics(registry)
        export_live(
            registry,
            in_flight=lambda: len(running),
            targets=targets.records,
            serving=serving.records,
        )
        completions = Completions(
            catalog=catalog,
            scheduler=scheduler,
            engines=EngineClients(channels),
            running=running,
            returns=returns,
            limits=config.limits,
            metrics=metrics,
        )
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(
            InferenceServicer(completions, catalog, running, metrics), server.grpc_server
        )
        views = await scope.enter_async_context(
            StatusViews(
                store, targets=targets, serving=serving, loaders=loader_records, engines=engine_records
            )
        )
        control = Control(store, LoaderVerifier(channels, loaders).verify, views.last_revision)
        control_pb2_grpc.add_ControlServiceServicer_to_server(
            ControlServicer(control, views, config.process_id), server.grpc_server
        )
        bound = await server.start(config.listen)
        scope.push_async_callback(server.stop, config.drain_s, config.grace_s)
        record = GatewayRecord(**dataclasses.asdict(Identity.of(config, bound, http.bound)))
        registration = Registration(store, keys.gateway(record.id), config.lease_ttl_s, record)
        await scope.enter_async_context(registration)
        await scope.enter_async_context(
            background(Report(catalog, engine_records, registration, server.readiness).follow())
        )
        scope.callback(server.readiness.end)  # first of all, while the record is withdrawn
        started(bound)
        await stop.wait()
