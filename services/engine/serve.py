"""An engine's life: memory, thread, server, then whatever the registry asks it to serve."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from typing import Final

import structlog
import torch

from halogen.v1.engine_pb2_grpc import add_EngineServiceServicer_to_server
from services.common.background import background
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint_health import ModelHealth, checkpoint_health
from services.common.cpu_list import parse_cpus
from services.common.health_check import Checked
from services.common.host_memory import HostMemory
from services.common.ids import ArtifactId
from services.common.lifecycle import Stop
from services.common.memory_guard import MemoryGuard
from services.common.metrics import fresh_registry, version
from services.common.probes import Probes
from services.common.process import Identity, Started, boot_id
from services.common.pulse import Pulse
from services.common.readiness import STOPPING
from services.common.registry import keys
from services.common.registry.contact import RegistryContact
from services.common.registry.publish_records import SwapMode
from services.common.registry.records import (
    EngineRecord,
    GenerationRecord,
    GenerationState,
    LoaderRecord,
    OfferRecord,
    Serving,
    Target,
)
from services.common.registry.registration import Registration
from services.common.registry.store import Store
from services.common.registry.view import View
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.endpoint import Endpoint
from services.common.rpc.server import RpcServer
from services.common.telemetry.prealloc import tell_prealloc
from services.common.ticket import TicketSigner
from services.engine.affinity import confine
from services.engine.arena import Arena
from services.engine.arena_scaler import ArenaScaler
from services.engine.assignments import Assignments, ServedPairs
from services.engine.autoscale import Autoscale
from services.engine.config import EngineConfig
from services.engine.demand import Demand
from services.engine.device_memory import device_bounds
from services.engine.engine import Engine
from services.engine.generation_manager import GenerationManager
from services.engine.generations import Generations
from services.engine.kernels.choice import choose_kernels
from services.engine.kernels.protocol import Kernels
from services.engine.loaded_model import ModelLoading
from services.engine.loader_client import LoaderClient
from services.engine.memory_pressure import MemoryPressure
from services.engine.metrics import export, export_progress
from services.engine.nearby_weights import NearbyWeights
from services.engine.progress import Moment, Progress
from services.engine.qualifier import Qualifier
from services.engine.recovery import Recovery
from services.engine.servicer import EngineServicer
from services.engine.suitability import SuitableOnly, offer_of
from services.engine.ticket_gate import TicketGate

SERVICE: Final = "halogen.v1.EngineService"

log = structlog.get_logger()


async def serve(config: EngineConfig, store: Store, stop: Stop, started: Started) -> None:
    """Serves until `stop` is asked for, and finishes what runs."""
    confine(parse_cpus(config.cpus))
    torch.set_num_threads(config.threads)
    kernels = choose_kernels(config.kernels, config.threads)
    guard = MemoryGuard(config.checkpoint.memory_guard_ratio, HostMemory().bounds)
    tell_prealloc(config.kv_arena_bytes, what="keys and values")
    most_bytes = (guard.emptied.room_bytes or 0) if config.kv_block_pool_autoscale else 0
    arena = Arena(config.kv_arena_bytes, most_bytes, config.kv_block_pool_min_free_ratio)
    engine = Engine(
        arena,
        chunk_tokens=config.chunk_tokens,
        max_batch=config.max_batch,
        step_timeout_s=config.step_timeout_s,
        check_every_step=config.check_every_step,
        prefix_cache=config.prefix_cache,
        swap_bytes=config.kv_swap_bytes,
        max_concurrent_requests=config.max_concurrent_requests,
    )
    shared = MemoryGuard(guard.ratio, lambda: (*HostMemory().shared_bounds(), *device_bounds(arena.device)))
    scaler = _scaler(config, engine, (guard, shared))
    loading = ModelLoading(
        arena=arena,
        kernels=kernels,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        kv_dtype=config.kv_dtype,
        guard=guard,
        shared=shared,
        is_busy=lambda: engine.is_busy,
        make_room=scaler.make_room,
        swap_bytes=lambda: Demand.of(engine).swap_bytes,
    )
    async with (
        engine,
        background(scaler.follow()),
        connect(Endpoint(str(config.loader), config.credentials)) as channel,
    ):
        loader = LoaderClient(channel, loading.layout)
        room = _Room(config, engine, loading, loader, runtime_build(kernels))
        await room.serve(store, stop, started)


def _scaler(config: EngineConfig, engine: Engine, guards: tuple[MemoryGuard, ...]) -> ArenaScaler:
    """Of an arena that stays as it is, unless it may be more than at its start."""
    arena = engine.arena
    autoscale = Autoscale(config.kv_arena_bytes, arena.most_bytes, notice_s=config.ticket_ttl_s)
    return ArenaScaler(
        arena,
        autoscale,
        guards,
        MemoryPressure().read,
        told=engine.occupancy.resize,
        demand=lambda: Demand.of(engine),
    )


def runtime_build(kernels: Kernels) -> str:
    """What answers, for provenance: ``halogen/0.1.0 cpu avx512_bf16 torch/2.13.0``."""
    return f"{version()} cpu {kernels.name} torch/{torch.__version__.partition('+')[0]}"


class _Room:
    """The parts of a running engine, wired."""

    def __init__(
        self, config: EngineConfig, engine: Engine, loading: ModelLoading, loader: LoaderClient, build: str
    ) -> None:
        self._config = config
        self._build = build
        self._offer = offer_of(config.dtype)
        self._loading = loading
        self._contact = RegistryContact()
        self._nearby = NearbyWeights(boot_id())
        self._qualifier = Qualifier(build)
        self._recovery = Recovery.of(config.recovery, config.process_id, config.etcd_prefix)
        self._records: tuple[GenerationRecord, ...] = ()
        self._news = Pulse()
        self._engine = engine
        self._stopping = self._stalled = ""  # why nothing new is taken
        engine.on_stall = self._on_stall
        self._assignments = Assignments(ServedPairs.parse(config.serves), config.checkpoint.policy)
        self._progress = Progress(self._assignments)
        self._generations = Generations(
            self._assignments,
            ticket_ttl_s=config.ticket_ttl_s,
            max_drain_s=config.checkpoint.max_drain_s,
        )
        self._manager = GenerationManager(
            self._generations,
            engine=engine,
            loader=SuitableOnly(loader, self._offer, self._check_memory, self._check_alone),
            verify=lambda prepared: self._loading_of(prepared.artifact_id).verify(prepared),
            changed=self._on_change,
            activated=self._qualifier.note,
        )

    async def serve(self, store: Store, stop: Stop, started: Started) -> None:
        server = RpcServer([SERVICE], self._config.slow_reader_s, self._config.door)
        registry = fresh_registry(self._config.role, self._build, server, self._contact)
        export(registry, self._engine, self._generations, self._build)
        export_progress(registry, self._progress)
        checks = {"checkpoint": lambda: self._check_checkpoint(server.readiness.missing)}
        async with Probes(self._config.http_listen, server.readiness, registry, checks) as http:
            await self._serve(server, http.bound, store, stop, started)

    async def _serve(
        self, server: RpcServer, http: Address, store: Store, stop: Stop, started: Started
    ) -> None:
        identity = Identity.of(self._config, self._config.listen, http)
        add_EngineServiceServicer_to_server(self._servicer(identity), server.grpc_server)
        bound = await server.start(self._config.listen)
        identity = dataclasses.replace(
            Identity.of(self._config, bound, http), instance_id=identity.instance_id
        )
        try:
            async with (
                self._following(store),
                self._registered(store, identity, server),
            ):
                started(bound)
                await stop.wait()
                server.readiness.end()  # first of all, while the record is withdrawn
                self._stopping = STOPPING
                self._generations.hold_back(self._stopping)
        finally:
            await asyncio.shield(server.stop(self._config.drain_s, self._config.grace_s))

    def _servicer(self, identity: Identity) -> EngineServicer:
        return EngineServicer(
            engine=self._engine,
            generations=self._generations,
            gate=TicketGate(identity.instance_id, TicketSigner.from_file(self._config.ticket_key_file)),
            engine_id=identity.id,
            instance_id=identity.instance_id,
            runtime_build=self._build,
        )

    @contextlib.asynccontextmanager
    async def _following(self, store: Store) -> AsyncIterator[None]:
        await self._recovery.read()
        async with (
            background(self._recovery.follow(self._news, lambda: self._progress.applied)),
            View(store, keys.TARGETS, Target, keeps=True, contact=self._contact) as targets,
            View(store, keys.SERVING, Serving, keeps=True, contact=self._contact) as serving,
            View(store, keys.LOADERS, LoaderRecord) as loaders,
            background(self._nearby.follow(loaders)),
            background(self._manager.follow(targets, serving, self._recovery.remembered)),
            background(self._qualifier.follow(store)),
        ):
            yield

    def _check_checkpoint(self, missing: str) -> Checked:
        now = dt.datetime.now(dt.UTC)
        models = [ModelHealth.of(each, now) for each in self._progress.records]
        bounds = HostMemory().bounds()
        return checkpoint_health(models, bounds, missing=missing, stale=self._contact.stale)

    def _check_memory(self, manifest: Manifest) -> None:
        """Of the weights the loader decides where others' may go first: of what has drained for them, or rests with it."""
        drains_first = self._assignments.policy(manifest.id).mode is SwapMode.DRAIN_THEN_LOAD
        held = {each.artifact_id for each in self._records}
        others_go = drains_first or self._generations.has_waited(manifest.id) or self._nearby.has_others(held)
        is_nearby = others_go or self._nearby.has(manifest.id, self._loading.layout_of(manifest))
        self._loading_of(manifest.id).check_memory(manifest, is_nearby=is_nearby)

    def _check_alone(self, manifest: Manifest) -> None:
        is_nearby = self._nearby.has(manifest.id, self._loading.layout_of(manifest))
        self._loading_of(manifest.id).alone.check_memory(manifest, is_nearby=is_nearby)

    def _loading_of(self, artifact_id: ArtifactId) -> ModelLoading:
        """As its publish wants it."""
        return self._loading.guarded_by(self._assignments.policy(artifact_id).memory_guard_ratio)

    @contextlib.asynccontextmanager
    async def _registered(self, store: Store, identity: Identity, server: RpcServer) -> AsyncIterator[None]:
        """Keeps engines/{id} and the server's health telling what this engine holds."""
        record = EngineRecord(
            **dataclasses.asdict(identity),
            runtime_build=self._build,
            serves=self._config.serves,
            offer=OfferRecord(**self._offer._asdict(), layout=str(self._loading.layout or "")),
            max_model_len=self._config.max_model_len,
        )

        async def tell(registration: Registration[EngineRecord]) -> None:
            async with contextlib.aclosing(self._news.beats()) as news:
                async for _ in news:
                    told = {"generations": self._records, "progress": self._progress.records}
                    registration.update(record.model_copy(update=told))
                    server.readiness.set(self._generations.missing, _readiness(self._records))

        key = keys.engine(identity.id)
        async with (
            Registration(store, key, self._config.lease_ttl_s, record, self._contact) as registration,
            background(tell(registration)),
        ):
            yield

    def _on_stall(self, is_stalled: bool) -> None:
        """While no step finishes nothing new comes here; what runs waits."""
        log.warning("engine_stalled" if is_stalled else "engine_moves_again")
        self._stalled = f"no step has finished for {self._config.step_timeout_s:g} s" if is_stalled else ""
        self._generations.hold_back(self._stopping or self._stalled)

    def _on_change(self, records: tuple[GenerationRecord, ...]) -> None:
        self._records = records
        now_s = asyncio.get_running_loop().time()
        self._progress.note(records, Moment(now_s, dt.datetime.now(dt.UTC).isoformat()))
        self._news.beat()


def _readiness(records: tuple[GenerationRecord, ...]) -> dict[str, bool]:
    """Every model@cohort that this engine is asked to serve, and whether a generation of it takes tickets."""
    names: dict[str, bool] = {}
    for record in records:
        name = f"{record.model}@{record.cohort}"
        names[name] = names.get(name, False) or record.state is GenerationState.ACTIVE
    return names
