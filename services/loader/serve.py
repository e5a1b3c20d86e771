"""A loader's life: take over, serve, tell the registry, leave no memory behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Final

import structlog

from halogen.v1.loader_pb2_grpc import add_LoaderServiceServicer_to_server
from services.common.background import background
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.lifecycle import Stop
from services.common.metrics import fresh_registry, version
from services.common.probes import Probes
from services.common.process import Identity, Started
from services.common.registry import keys
from services.common.registry.records import LoaderRecord
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.common.rpc.server import RpcServer
from services.loader.config import LoaderConfig
from services.loader.conversions import Conversions
from services.loader.metrics import LoaderMetrics, export_live
from services.loader.places import choose_places, folder_name, sweep_abandoned
from services.loader.preparations import Preparations
from services.loader.servicer import LoaderServicer

SERVICE: Final = "halogen.v1.LoaderService"

log = structlog.get_logger()


async def serve(config: LoaderConfig, store: Store, stop: Stop, started: Started) -> None:
    """Serves until `stop` is asked for."""
    artifacts = ArtifactStore.at(config.store)
    folder = folder_name(artifacts.root)
    places = choose_places(config.only_place, config.weights_dir, config.cache_dir, folder)
    sweep_abandoned(places)
    server = RpcServer([SERVICE], config.slow_reader_s)
    registry = fresh_registry(config.role, version(), server.readiness, server.in_flight)
    metrics = LoaderMetrics(registry)
    async with (
        Probes(config.http_listen, server.readiness, registry) as http,
        Preparations(
            artifacts, places, threads=config.read_threads, keep_s=config.keep_s, metrics=metrics
        ) as preparations,
    ):
        export_live(registry, preparations.residents)
        servicer = LoaderServicer(artifacts, preparations, Conversions(artifacts, config.convert_root))
        add_LoaderServiceServicer_to_server(servicer, server.grpc_server)
        bound = await server.start(config.listen)
        try:
            await _tell_readiness(artifacts, server)
            async with (
                _registered(config, store, Identity.of(config, bound, http.bound), preparations),
                background(_watch_store(artifacts, server, config.store_check_s)),
            ):
                started(bound)
                await stop.wait()
                server.readiness.end()  # first of all, while the record is withdrawn
        finally:
            await asyncio.shield(server.stop(config.drain_s, config.grace_s))


@contextlib.asynccontextmanager
async def _registered(
    config: LoaderConfig, store: Store, identity: Identity, preparations: Preparations
) -> AsyncIterator[None]:
    """Keeps loaders/{id} telling what this loader holds."""
    record = LoaderRecord(**dataclasses.asdict(identity), placement=preparations.placement)

    async def tell(registration: Registration[LoaderRecord]) -> None:
        while True:
            await preparations.changed.wait()
            preparations.changed.clear()
            now = {"placement": preparations.placement, "artifact_ids": preparations.artifact_ids}
            registration.update(registration.record.model_copy(update=now))

    key = keys.loader(config.process_id)
    async with (
        Registration(store, key, config.lease_ttl_s, record) as registration,
        background(tell(registration)),
    ):
        yield


async def _watch_store(artifacts: ArtifactStore, server: RpcServer, every_s: float) -> None:
    """Looks again and again: a file system that comes or goes tells nobody."""
    while True:
        await asyncio.sleep(every_s)
        await _tell_readiness(artifacts, server)


async def _tell_readiness(artifacts: ArtifactStore, server: RpcServer) -> None:
    is_reachable = await asyncio.to_thread(lambda: artifacts.is_reachable)
    server.readiness.set("" if is_reachable else "the store of artifacts cannot be read")
