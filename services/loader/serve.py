"""A loader's life: take over, serve, tell the registry, leave no memory behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any, Final

import structlog

from halogen.v1.loader_pb2_grpc import add_LoaderServiceServicer_to_server
from services.common.background import background
from services.common.host_memory import HostMemory
from services.common.lifecycle import Stop
from services.common.memory_guard import MemoryGuard
from services.common.metrics import fresh_registry, version
from services.common.probes import Probes
from services.common.process import Identity, Started, boot_id
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.records import EngineRecord, LoaderRecord
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.common.registry.view import View
from services.common.release import release
from services.common.rpc.server import RpcServer
from services.loader.admittance import Admittance
from services.loader.artifacts import Artifacts
from services.loader.config import LoaderConfig
from services.loader.conversions import Conversions
from services.loader.metrics import LoaderMetrics, export_live
from services.loader.model_path import bring_in, wanted_by_first
from services.loader.pace import GentlePace
from services.loader.place import PlaceKind
from services.loader.places import choose_places, folder_name, sweep_abandoned
from services.loader.preparations import Preparations
from services.loader.reading import Reading
from services.loader.servicer import LoaderServicer
from services.loader.supply import supply
from services.loader.traffic import Traffic
from services.loader.weight_file import ReadMode

SERVICE: Final = "halogen.v1.LoaderService"

log = structlog.get_logger()


async def serve(config: LoaderConfig, store: Store, stop: Stop, started: Started) -> None:
    """Serves until `stop` is asked for."""
    folder = folder_name(config.store_place)
    places = choose_places(config.only_place, config.weights_dir, config.cache_dir, folder)
    sweep_abandoned(places)
    server = RpcServer([SERVICE], config.slow_reader_s, config.door)
    contact = RegistryContact()
    registry = fresh_registry(config.role, version(), server, contact)
    metrics = LoaderMetrics(registry)
    traffic = Traffic(boot_id())
    async with (
        Probes(config.http_listen, server.readiness, registry) as http,
        supply(config, registry) as (artifacts, derived),
        Preparations(
            artifacts,
            places,
            reading=_reading(config, traffic),
            keep_s=config.keep_s,
            metrics=metrics,
            guard=MemoryGuard(config.memory_guard_ratio, HostMemory().bounds),
            admit=Admittance(release(), config.trust).check,
            derived=derived,
        ) as preparations,
    ):
        export_live(registry, preparations.residents, preparations.report, traffic)
        conversions = Conversions(config.directory_store, config.convert_root)
        servicer = LoaderServicer(artifacts, preparations, conversions)
        add_LoaderServiceServicer_to_server(servicer, server.grpc_server)
        bound = await server.start(config.listen)
        try:
            await _tell_readiness(artifacts, server)
            async with (
                View(store, keys.ENGINES, EngineRecord) as engines,
                background(traffic.follow(engines)),
                _registered(config, store, Identity.of(config, bound, http.bound), preparations, contact),
                background(_watch_store(artifacts, server, config.store_check_s)),
                background(_begin(config, preparations, engines)),
            ):
                started(bound)
                await stop.wait()
                server.readiness.end()  # first of all, while the record is withdrawn
        finally:
            await asyncio.shield(server.stop(config.drain_s, config.grace_s))


def _reading(config: LoaderConfig, traffic: Traffic) -> Reading:
    return Reading(
        threads=config.load_thread_num,
        asked=config.asked_mode,
        lazy_share=config.mmap_threshold,
        pace=GentlePace(lambda: traffic.is_live, config.live_load_bytes_per_s),
    )


async def _begin(config: LoaderConfig, preparations: Preparations, engines: View[EngineRecord]) -> None:
    """Brings in the model that the loader was started with, if it was; one that cannot be had ends the loader."""
    path, store = config.model_path, config.directory_store
    if path is not None and store is not None:
        await bring_in(
            path, config.asked_format, store, preparations, lambda: wanted_by_first(engines, boot_id())
        )


@contextlib.asynccontextmanager
async def _registered(
    config: LoaderConfig,
    store: Store,
    identity: Identity,
    preparations: Preparations,
    contact: RegistryContact,
) -> AsyncIterator[None]:
    """Keeps loaders/{id} telling what this loader holds."""
    fills_memory = config.asked_mode is not ReadMode.MMAP and config.only_place is not PlaceKind.FILE
    record = LoaderRecord(**dataclasses.asdict(identity), fills_memory=fills_memory, **_told(preparations))

    async def tell(registration: Registration[LoaderRecord]) -> None:
        while True:
            await preparations.changed.wait()
            preparations.changed.clear()
            registration.update(registration.record.model_copy(update=_told(preparations)))

    key = keys.loader(config.process_id)
    async with (
        Registration(store, key, config.lease_ttl_s, record, contact) as registration,
        background(tell(registration)),
    ):
        yield


def _told(preparations: Preparations) -> dict[str, Any]:
    """What others are told of the weights here."""
    return {
        "placement": preparations.placement,
        "reading": preparations.report.text,
        "artifact_ids": preparations.artifact_ids,
        "weights": preparations.file_names,
    }


async def _watch_store(artifacts: Artifacts, server: RpcServer, every_s: float) -> None:
    """Looks again and again: a file system that comes or goes tells nobody."""
    while True:
        await asyncio.sleep(every_s)
        await _tell_readiness(artifacts, server)


async def _tell_readiness(artifacts: Artifacts, server: RpcServer) -> None:
    is_reachable = await asyncio.to_thread(lambda: artifacts.is_reachable)
    server.readiness.set("" if is_reachable else "the store of artifacts cannot be read")
