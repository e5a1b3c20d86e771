"""What an engine tells Prometheus: all of it read from live objects when it is asked."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.common.kv import BLOCK_TOKENS
from services.common.metrics import STEP_TOKENS, LiveMetrics, Readings, short
from services.engine.block_pool import BlockPool
from services.engine.engine import Engine
from services.engine.extent import EXTENT_BLOCKS
from services.engine.generations import Generations
from services.engine.preemption import Way
from services.engine.progress import Progress


def export(registry: CollectorRegistry, engine: Engine, generations: Generations, build: str) -> None:
    """Makes the engine's metrics part of `registry`."""
    live = LiveMetrics(registry)
    _export_requests(live, engine)
    _export_memory(live, engine, generations)
    _export_steps(live, engine)
    _export_generations(live, generations, build)


def _export_requests(live: LiveMetrics, engine: Engine) -> None:
    live.gauge(
        "num_requests_running", "Requests of which something is computed.", lambda: engine.load.running
    )
    live.gauges(
        "num_requests_waiting",
        "Requests of which nothing is computed yet, or that were set back, by what they wait for.",
        ("reason",),
        lambda: {
            ("batch",): engine.load.waiting_for_batch,
            ("chunk",): engine.load.waiting_for_chunk,
            ("memory",): engine.load.waiting_for_memory,
        },
    )
    live.counter(
        "engine_requests_accepted_total", "Requests taken in, warm-ups included.", lambda: engine.accepted
    )
    live.counters(
        "engine_requests_total",
        "Requests that have ended, by finish reason or error.",
        ("finish_reason",),
        lambda: {(reason,): count for reason, count in engine.ended.items()},
    )


def _export_memory(live: LiveMetrics, engine: Engine, generations: Generations) -> None:
    pool = engine.arena.pool
    live.gauge(
        "kv_cache_usage_perc",
        "Occupancy: bytes of keys and values in use or promised over the arena; 1 is full.",
        lambda: pool.used_bytes / pool.total_bytes if pool.total_bytes else 0.0,
    )
    live.gauge(
        "kv_cache_reclaimable_bytes",
        "Bytes of pages kept from earlier prompts that a request may take.",
        lambda: pool.reclaimable_bytes,
    )
    _export_pool(live, pool)
    live.counters(
        "num_preemptions_total",
        "Requests set back for others, by what becomes of their keys and values.",
        ("way",),
        lambda: {(way.value,): engine.desk.preemptions[way] for way in Way},
    )
    live.gauge(
        "kv_swap_bytes",
        "Bytes of keys and values outside of the arena, of requests that were set back.",
        lambda: engine.desk.swap.used_bytes,
    )
    live.gauges(
        "kv_cache_held_bytes",
        "What requests have of the arena: for stored tokens, in blocks that hold any, in all.",
        ("part",),
        lambda: {(part.removesuffix("_bytes"),): value for part, value in engine.desk.use._asdict().items()},
    )
    live.gauges(
        "memory_reserved_bytes",
        "Memory set aside: the arena of keys and values, and the mapped weights.",
        ("kind",),
        lambda: {("kv",): pool.total_bytes, ("weights",): sum(generations.weights_bytes.values())},
    )
    live.gauges(
        "memory_allocated_bytes",
        "The part of memory_reserved_bytes that is in use.",
        ("kind",),
        lambda: {("kv",): pool.used_bytes, ("weights",): sum(generations.weights_bytes.values())},
    )
    live.gauges(
        "weights_bytes",
        "Mapped weights of every artifact.",
        ("artifact",),
        lambda: {(short(artifact),): size for artifact, size in generations.weights_bytes.items()},
    )
    live.gauges(
        "weights_layout_info",
        "1 for the layout in which an artifact's weights are mapped; empty: as they are stored.",
        ("artifact", "layout"),
        lambda: {(short(artifact), layout): 1 for artifact, layout in generations.layouts.items()},
    )


def _export_pool(live: LiveMetrics, pool: BlockPool) -> None:
    live.gauge("kv_arena_bytes", "Size of the arena of keys and values.", lambda: pool.total_bytes)
    live.gauge("kv_cache_used_bytes", "Bytes of it in use or reserved.", lambda: pool.used_bytes)
    live.gauge("kv_cache_free_bytes", "Bytes of it that hold nothing.", lambda: pool.free_bytes)
    live.gauges(
        "kv_cache_extents",
        "Stretches of blocks side by side that requests under way were given: of 16 to 63 tokens, 64 to 255, or more.",
        ("tokens",),
        lambda: {(str(blocks * BLOCK_TOKENS),): pool.extents[blocks] for blocks in EXTENT_BLOCKS},
    )


def _export_steps(live: LiveMetrics, engine: Engine) -> None:
    tally = engine.tally
    live.counter("steps_total", "Steps computed.", lambda: engine.steps)
    live.counter("prompt_tokens_total", "Tokens of prompts computed.", lambda: tally.prompt_tokens)
    live.counter("generation_tokens_total", "Tokens generated.", lambda: tally.generated_tokens)
    prefixes = engine.prefixes
    live.counter(
        "prefix_cache_queries_total",
        "Tokens of prompts that were looked up among the kept pages.",
        lambda: prefixes.asked_tokens,
    )
    live.counter("prefix_cache_hits_total", "Those of them that were there.", lambda: prefixes.found_tokens)
    live.histogram(
        "iteration_tokens", "Tokens computed together in one step.", STEP_TOKENS, lambda: tally.sizes
    )


def export_progress(registry: CollectorRegistry, progress: Progress) -> None:
    """Makes what has been applied, and the last swap, part of `registry`."""
    live = LiveMetrics(registry)
    live.gauges(
        "engine_applied_revision",
        "The latest revision that gateways use and that is ACTIVE here; 0 where none is.",
        ("model", "cohort"),
        lambda: {(each.model, each.cohort): each.applied_sequence_id for each in progress.records},
    )
    live.gauges(
        "engine_last_swap_seconds",
        "From when this engine heard of a publish to when it was applied, of the last that brought another artifact.",
        ("model", "cohort"),
        lambda: {
            (each.model, each.cohort): each.last_swap_duration_ms / 1000
            for each in progress.records
            if each.last_swap_duration_ms is not None
        },
    )


def _export_generations(live: LiveMetrics, generations: Generations, build: str) -> None:
    def infos() -> Readings:
        return {
            (held.model, held.cohort, short(held.artifact_id), str(held.revision), build, held.state): 1
            for held in generations.records
        }

    live.gauges(
        "generation_info",
        "Every artifact in this engine, for which model@cohort and revision, and how far it is.",
        ("model", "cohort", "artifact", "revision", "build", "state"),
        infos,
    )
    live.counter(
        "revision_conflicts_total",
        "Records of the registry that were refused: they name another artifact for a known revision.",
        lambda: generations.conflicts,
    )
    live.gauges(
        "engine_desired_revision",
        "The revision that the registry asks of this engine.",
        ("model", "cohort"),
        lambda: {tuple(pair): revision for pair, revision in generations.desired.items()},
    )
    live.gauges(
        "engine_actual_revision",
        "The latest revision that is ACTIVE here; 0 where none is.",
        ("model", "cohort"),
        lambda: {tuple(pair): revision for pair, revision in generations.actual.items()},
    )
