"""The loader as others see it: over the wire and in the registry."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halogen.v1 import loader_pb2 as pb
from halogen.v1.loader_pb2_grpc import LoaderServiceStub
from services.common import errors
from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.derived_files import derived_name
from services.common.checkpoint.header import Header
from services.common.checkpoint.kernel_layout import PACKED32, KernelLayout
from services.common.ids import ProcessId
from services.common.lifecycle import Stop
from services.common.memory_guard import Bound, MemoryGuard
from services.common.process import boot_id
from services.common.registry import keys
from services.common.registry.memory import MemoryStore
from services.common.registry.records import EngineRecord, LoaderRecord, OfferRecord
from services.common.registry.records import GenerationState as State
from services.common.registry.registration import Registration
from services.common.registry.view import View
from services.common.rpc.address import Address
from services.common.rpc.client import connect
from services.common.rpc.status import from_rpc_error
from services.loader.config import LoaderConfig
from services.loader.conversion import convert as convert_checkpoint
from services.loader.serve import SERVICE, serve
from tests.tiny_checkpoints import STORIES, write_tiny_checkpoint
from tests.unit.loader.disk import flip
from tests.unit.loader.engines import engine


class Loader(NamedTuple):
    """A running loader, a stub to call it with, and the registry that it tells."""

    stub: Any
    channel: grpc.aio.Channel
    registry: MemoryStore
    config: LoaderConfig


def configure(**settings: Any) -> LoaderConfig:
    return LoaderConfig(id="loader-1", etcd=("unused:1",), place="tmpfs", drain_s=1.0, grace_s=0, **settings)


@contextlib.asynccontextmanager
async def run_loader(config: LoaderConfig) -> AsyncIterator[Loader]:
    registry, stop = MemoryStore(), Stop()
    bound: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(config, registry, stop, bound.set_result))
        try:
            async with connect(str(await bound)) as channel:
                yield Loader(LoaderServiceStub(channel), channel, registry, config)
        finally:
            stop.ask("the test is over")


@pytest.fixture
async def loader(store: ArtifactStore, shm: Path, tmp_path: Path) -> AsyncIterator[Loader]:
    (tmp_path / "sources").mkdir()
    config = configure(store=str(store.root), weights_dir=shm, convert_root=tmp_path / "sources")
    async with run_loader(config) as running:
        yield running


async def prepare(loader: Loader, artifact_id: str) -> list[pb.PrepareArtifactResponse]:
    call = loader.stub.PrepareArtifact(pb.PrepareArtifactRequest(artifact_id=artifact_id), timeout=60)
    return [response async for response in call]


async def read_file(loader: Loader, artifact_id: str, path: str) -> list[bytes]:
    call = loader.stub.ReadFile(pb.ReadFileRequest(artifact_id=artifact_id, path=path), timeout=60)
    return [response.data async for response in call]


async def convert(loader: Loader, source: str) -> list[pb.ConvertCheckpointResponse]:
    call = loader.stub.ConvertCheckpoint(pb.ConvertCheckpointRequest(source=source), timeout=60)
    return [response async for response in call]


@contextlib.contextmanager
def refuses(kind: type[errors.HalogenError], expected: str) -> Iterator[None]:
    """The call fails with the status of such an error."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        yield
    assert isinstance(failure.value, grpc.aio.AioRpcError)
    error = from_rpc_error(failure.value)
    assert kind is type(error)
    assert expected in error.message


async def test_an_artifact_is_prepared_over_the_wire(loader: Loader, stored: StoredArtifact) -> None:
    """Progress first, then one message that says where an engine finds the weights."""
    *progress, last = await prepare(loader, stored.manifest.id)
    weights = stored.manifest.weights
    file = last.prepared.files[0]
    assert all(response.WhichOneof("event") == "progress" for response in progress)
    assert (stored.manifest.id, weights.path, weights.sha256, weights.size_bytes, "tmpfs") == (
        last.prepared.artifact_id,
        file.path,
        file.identity,
        file.size_bytes,
        file.place,
    )
    assert stored.path(weights).read_bytes() == Path(file.mapped_path).read_bytes()


async def test_a_layout_is_had_over_the_wire(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path
) -> None:
    """The answer says how matrices lie, and the registry which files are in memory; one that nobody knows is left out.

    Fault injection: turns red when LoaderServicer passes no layout on.
    """
    config = configure(store=str(store.root), weights_dir=shm, cache_dir=cache_dir)
    async with run_loader(config) as loader:
        for abi, answered in (("packed32-v1", True), ("packed99-v1", False)):
            layout = pb.WeightLayout(abi=abi, isa="x86")
            request = pb.PrepareArtifactRequest(artifact_id=stored.manifest.id, layout=layout)
            *_, last = [response async for response in loader.stub.PrepareArtifact(request, timeout=60)]
            file = last.prepared.files[0]
            assert (answered, layout if answered else pb.WeightLayout()) == (
                file.HasField("layout"),
                file.layout,
            )
            header = Header.decode(Path(file.mapped_path).read_bytes())
            assert (file.identity, answered) == (header.identity, header.derived is not None)
        names = (stored.manifest.id, f"{stored.manifest.id}.packed32-v1.x86")
        async with (
            View(loader.registry, keys.LOADERS, LoaderRecord) as view,
            contextlib.aclosing(view.changes()) as changes,
        ):
            async for _ in changes:
                if names == view.records[keys.loader(ProcessId("loader-1"))].weights:
                    break


async def test_a_rank_gets_its_part_over_the_wire(loader: Loader, stored: StoredArtifact) -> None:
    """A file of its own, with its own identity; a rank that cannot be is refused."""
    ranks = pb.TensorParallelRank(size=2, index=1, indices_here=[1])
    request = pb.PrepareArtifactRequest(artifact_id=stored.manifest.id, rank=ranks)
    *_, last = [response async for response in loader.stub.PrepareArtifact(request, timeout=60)]
    (file,) = last.prepared.files
    assert file.identity == Header.decode(Path(file.mapped_path).read_bytes()).identity
    assert file.size_bytes < stored.manifest.weights.size_bytes
    with refuses(errors.InvalidRequest, "they are 0 to 1"):
        request.rank.index = 2
        await anext(aiter(loader.stub.PrepareArtifact(request, timeout=60)))


async def test_a_bad_block_is_a_status_that_names_it(loader: Loader, stored: StoredArtifact) -> None:
    """Whoever registers the artifact can say why it is rejected."""
    weights = stored.path(stored.manifest.weights)
    flip(weights, weights.stat().st_size - 1)
    with refuses(errors.CorruptData, "model.halogen: block 2 of 3"):
        await prepare(loader, stored.manifest.id)


async def record_with_artifacts(loaders: View[LoaderRecord]) -> LoaderRecord:
    """The only loader's record, once it tells of an artifact."""
    async with contextlib.aclosing(loaders.changes()) as changes:
        async for _ in changes:
            for record in loaders.records.values():
                if record.artifact_ids:
                    return record
    raise AssertionError("changes never end")


async def test_the_registry_knows_what_the_loader_holds(loader: Loader, stored: StoredArtifact) -> None:
    """Before, nothing; afterwards the artifact and where it lies."""
    async with View(loader.registry, keys.LOADERS, LoaderRecord) as view:
        await view.synced()
        await prepare(loader, stored.manifest.id)
        record = await record_with_artifacts(view)
    assert (loader.config.process_id, (stored.manifest.id,)) == (record.id, record.artifact_ids)
    assert record.placement.startswith("tmpfs, ")
    assert record.reading.startswith(("direct", "buffered"))


async def test_small_files_are_read_verified(loader: Loader, stored: StoredArtifact) -> None:
    """The tokenizer arrives whole, in chunks of at most 1 MiB."""
    chunks = await read_file(loader, stored.manifest.id, "tokenizer.json")
    assert (stored.directory / "tokenizer.json").read_bytes() == b"".join(chunks)
    assert max(map(len, chunks)) <= 1 << 20
    flip(stored.directory / "tokenizer.json", 7)
    with refuses(errors.CorruptData, "tokenizer.json does not match"):
        await read_file(loader, stored.manifest.id, "tokenizer.json")
    (stored.directory / "tokenizer.json").unlink()
    with refuses(errors.CorruptData, "tokenizer.json is missing"):
        await read_file(loader, stored.manifest.id, "tokenizer.json")


async def test_a_large_small_file_comes_in_chunks(
    loader: Loader, store: ArtifactStore, tmp_path: Path
) -> None:
    """No message is over 1 MiB, whatever the file."""
    source = write_tiny_checkpoint(tmp_path / "sources" / "large")
    tokenizer = source / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b" " * (5 << 19))
    artifact_id = (await convert(loader, "large"))[-1].artifact_id
    chunks = await read_file(loader, artifact_id, "tokenizer.json")
    assert tokenizer.read_bytes() == b"".join(chunks)
    assert [1 << 20, 1 << 20] == [len(chunk) for chunk in chunks[:2]]


OUTSIDE = ("absent.json", "manifest.sig", "../x", "/etc/passwd", "", "tokenizer.json/", "a/../../etc/passwd")
ENCODED = ("file:///etc/passwd", "%2e%2e/x", "tokenizer.json#/../../x", "tokenizer.json?x", "TOKENIZER.JSON")


# Turns red when: read_small opens the path that it was asked for instead of looking it up in the manifest.
@pytest.mark.parametrize("path", [*OUTSIDE, *ENCODED])
async def test_r_f2_only_files_of_the_manifest_are_read(
    loader: Loader, stored: StoredArtifact, path: str
) -> None:
    """No path leads out of the artifact, however it is written."""
    with refuses(errors.NotFound, "it has config.json, generation_config.json, tokenizer.json"):
        await read_file(loader, stored.manifest.id, path)


async def test_the_manifest_is_read_like_a_file(loader: Loader, stored: StoredArtifact) -> None:
    """Its sha256 is the id that was asked for: an engine looks at it before it asks for the weights."""
    assert [stored.manifest.encode()] == await read_file(loader, stored.manifest.id, "manifest.json")


async def test_weights_are_not_sent(loader: Loader, stored: StoredArtifact) -> None:
    """They never ride gRPC."""
    with refuses(errors.InvalidRequest, "PrepareArtifact"):
        await read_file(loader, stored.manifest.id, "model.halogen")


async def test_what_is_no_id_or_not_there_is_refused(loader: Loader) -> None:
    """Two different answers."""
    with refuses(errors.InvalidRequest, "64 lower-case"):
        await prepare(loader, "../../etc")
    with refuses(errors.NotFound, "halogen publish"):
        await prepare(loader, "0" * 64)


async def test_a_checkpoint_is_converted_on_request(
    loader: Loader, store: ArtifactStore, tmp_path: Path
) -> None:
    """Progress, then the id of an artifact that can be prepared; asking again is no error."""
    write_tiny_checkpoint(tmp_path / "sources" / "llama" / "tiny")
    *progress, last = await convert(loader, "llama/tiny")
    assert progress[-1].done_bytes == progress[-1].total_bytes > 0
    await prepare(loader, last.artifact_id)
    assert last.artifact_id == (await convert(loader, "llama/tiny"))[-1].artifact_id
    assert [last.artifact_id] == [path.name for path in store.root.iterdir()]


# Turns red when: Conversions._locate does not resolve the path before it looks whether the root contains it.
@pytest.mark.parametrize("source", ["", "../store", "/etc", "link", "link/..", "a/../../store"])
async def test_r_f2_nothing_outside_the_convert_root_is_converted(
    loader: Loader, tmp_path: Path, source: str
) -> None:
    """Neither by a path nor by a link: resolved first, then looked at."""
    write_tiny_checkpoint(tmp_path / "outside")
    (tmp_path / "sources" / "link").symlink_to(tmp_path / "outside")
    with refuses(errors.InvalidRequest, "below the loader's convert root"):
        await convert(loader, source)


async def test_the_converters_errors_keep_their_kind(
    loader: Loader, store: ArtifactStore, tmp_path: Path
) -> None:
    """What the worker process refuses is refused to the caller, and nothing stays."""
    source = write_tiny_checkpoint(tmp_path / "sources" / "tiny")
    (source / "tokenizer.json").unlink()
    with refuses(errors.InvalidRequest, "no tokenizer.json"):
        await convert(loader, "tiny")
    with refuses(errors.NotFound, "no such directory"):
        await convert(loader, "absent")
    assert [] == list(store.root.iterdir())


async def test_a_caller_who_leaves_ends_the_conversion(
    loader: Loader, store: ArtifactStore, tmp_path: Path
) -> None:
    """Its process ends, its files go, and another conversion can begin."""
    write_tiny_checkpoint(tmp_path / "sources" / "tiny")
    call = loader.stub.ConvertCheckpoint(pb.ConvertCheckpointRequest(source="tiny"), timeout=60)
    await call.wait_for_connection()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call.read()
    last: str | None = None
    while last is None:  # until the first has ended, the second is turned away
        try:
            last = (await convert(loader, "tiny"))[-1].artifact_id
        except grpc.aio.AioRpcError as failure:
            if failure.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
    assert [last] == [path.name for path in store.root.iterdir()]


async def test_without_a_convert_root_nothing_is_converted(store: ArtifactStore, shm: Path) -> None:
    """The message names the flag."""
    async with run_loader(configure(store=str(store.root), weights_dir=shm)) as loader:
        with refuses(errors.PreconditionFailed, "--convert-root"):
            await convert(loader, "tiny")


# Fault injection: turns red when `bring_in` has it prepared as it is stored, or `wanted_by_first` asks any engine.
@pytest.mark.parametrize(
    ("is_artifact", "layout"), [(True, PACKED32), (False, PACKED32), (True, None), (False, None)]
)
async def test_the_model_that_a_loader_is_started_with_is_ready_for_engines(
    store: ArtifactStore,
    shm: Path,
    cache_dir: Path,
    tmp_path: Path,
    is_artifact: bool,
    layout: KernelLayout | None,
) -> None:
    """Converted if need be, and in the store; in memory is what an engine of this host says that it maps, and that alone."""
    source = write_tiny_checkpoint(tmp_path / "tiny")
    expected = convert_checkpoint(source, tmp_path / "artifact").id
    path = tmp_path / "artifact" if is_artifact else source
    config = configure(store=str(store.root), weights_dir=shm, cache_dir=cache_dir, model_path=path)
    elsewhere, here = offering("elsewhere", None if layout else PACKED32), offering(boot_id(), layout)
    async with (
        run_loader(config) as loader,
        Registration(loader.registry, keys.engine(ProcessId("e0")), 10, elsewhere),
        View(loader.registry, keys.LOADERS, LoaderRecord) as view,
        Registration(loader.registry, keys.engine(ProcessId("e1")), 10, here),
    ):
        record = await record_with_artifacts(view)
        wanted = pb.WeightLayout(**layout._asdict()) if layout else None
        request = pb.PrepareArtifactRequest(artifact_id=expected, layout=wanted)
        (last,) = [response async for response in loader.stub.PrepareArtifact(request, timeout=60)]
    assert (derived_name(expected, layout) if layout else expected,) == record.weights
    assert expected == last.prepared.artifact_id


def offering(boot: str, layout: KernelLayout | None) -> EngineRecord:
    """An engine of the host that booted so, which wants weights to lie so."""
    offer = OfferRecord(
        runtime="halogen/0", device_class="cpu", precisions=(), input_schemas=(), layout=str(layout or "")
    )
    return engine(boot).model_copy(update={"offer": offer})


async def test_a_model_that_there_is_no_room_for_ends_no_loader(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on for the models that there is room for; whoever asks for this one is told.

    Fault injection: turns red when `bring_in` lets what `prepare` raises pass.
    """
    guard = MemoryGuard(1, lambda: [Bound("this host", 1, 0)])
    monkeypatch.setattr("services.loader.serve.MemoryGuard", lambda *_: guard)
    refused = Heard()
    monkeypatch.setattr("services.loader.preparations.log", refused)
    path = stored.directory
    config = configure(store=str(store.root), weights_dir=shm, cache_dir=cache_dir, model_path=path)
    async with (
        run_loader(config) as loader,
        Registration(loader.registry, keys.engine(ProcessId("e")), 10, offering(boot_id(), None)),
    ):
        await refused.event.wait()
        with refuses(errors.Overloaded, "memory guard"):
            await prepare(loader, stored.manifest.id)


class Heard:
    """A log that tells when something is said to it."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def info(self, _event: str, **_told: object) -> None:
        self.event.set()

    warning = info


async def test_reads_hold_back_while_an_engine_of_this_host_serves(
    store: ArtifactStore, stored: StoredArtifact, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader hears of the engine from the registry, and tells there how it reads.

    Fault injection: turns red when serve() does not follow the engines.
    """
    heard = Heard()
    monkeypatch.setattr("services.loader.traffic.log", heard)
    async with (
        run_loader(configure(store=str(store.root), weights_dir=shm)) as loader,
        Registration(loader.registry, keys.engine(ProcessId("e")), 10, engine(boot_id(), State.ACTIVE)),
        View(loader.registry, keys.LOADERS, LoaderRecord) as loaders,
    ):
        await heard.event.wait()
        await prepare(loader, stored.manifest.id)
        record = await record_with_artifacts(loaders)
    assert record.reading.endswith(
        "; beside live traffic: idle I/O priority, at most 1073741824 bytes/s, fewer with busy cores"
    )


async def next_status(watch: Any) -> int:
    response = await watch.read()
    status: int = response.status
    return status


async def test_a_loader_is_ready_while_its_store_is_there(tmp_path: Path, shm: Path) -> None:
    """Health follows the directory, both ways, and calls say what is wrong."""
    store = tmp_path / "later"
    config = configure(store=str(store), weights_dir=shm, store_check_s=0.01)
    serving, not_serving = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    async with run_loader(config) as loader:
        watch = health_pb2_grpc.HealthStub(loader.channel).Watch(
            health_pb2.HealthCheckRequest(service=SERVICE), timeout=60
        )
        assert not_serving == await next_status(watch)
        with refuses(errors.Unavailable, "--store"):
            await prepare(loader, "0" * 64)
        store.mkdir()
        assert serving == await next_status(watch)
        store.rmdir()
        assert not_serving == await next_status(watch)
        watch.cancel()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--store"),
        (["--store", ""], "store '': give a directory"),
        (["--store", "ftp://store"], "loaders also read http:// and https://"),
        (["--store", "s3://bucket"], "file:///absolute/path"),
        (["--store", "http://store/a/%2e%2e"], "a path without . and .."),
        (["--store", "https://ada:secret@store/"], "--store-token-file"),
        (
            ["--store", "http://store/", "--convert-root", "x"],
            "convert_root needs a store that can be written",
        ),
        (
            ["--store", "http://store/", "--read-mode", "mmap"],
            "read_mode mmap needs a store that is a directory",
        ),
        (["--store", "http://store/", "--cache-max-bytes", "0"], "--cache-max-bytes"),
        (["--store", "x", "--place", "tmpfs"], "weights_dir"),
        (["--store", "x", "--place", "moon"], "--place"),
        (["--store", "x", "--load-thread-num", "0"], "--load-thread-num"),
        (["--store", "x", "--memory-guard-ratio", "0"], "--memory-guard-ratio"),
        (["--store", "x", "--mmap-threshold", "2"], "--mmap-threshold"),
        (["--store", "x", "--mmap-threshold", "0.5"], "read_mode mmap"),
        (["--store", "x", "--read-mode", "mmap", "--place", "memfd"], "leave place out"),
        (["--store", "x", "--load-format", "v2"], "model_path"),
        (["--store", "x", "--model-path", "/nowhere"], "/nowhere: no such directory"),
        (["--store", "x", "--model-path", str(STORIES), "--load-format", "v2"], "halogen convert"),
    ],
)
def test_a_wrong_setting_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit):
        LoaderConfig.load(arguments)
    told = capsys.readouterr().err
    assert expected in told
    assert 1 == len(told.splitlines())
