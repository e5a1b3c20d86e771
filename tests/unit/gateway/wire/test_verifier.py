"""An artifact verified by loaders, of which some may die of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc
import pytest

from halogen.v1 import loader_pb2 as pb
from halogen.v1 import loader_pb2_grpc
from services.common.checkpoint.kernel_layout import PACKED32, KernelLayout
from services.common.errors import CorruptData, HalogenError, Unavailable
from services.common.ids import ArtifactId
from services.common.rpc.client import ChannelPool
from services.common.rpc.status import to_status
from services.gateway.artifacts import Verified
from services.gateway.verifier import LoaderVerifier
from tests.unit.gateway.wire.test_loader_client import registered

ARTIFACT = ArtifactId("a" * 64)


class DyingLoader(loader_pb2_grpc.LoaderServiceServicer):
    """Is gone in the middle of its first answers, as the wire tells it; then answers in full, or with `error`."""

    def __init__(self, deaths: int, error: HalogenError | None = None) -> None:
        self.deaths = deaths
        self.error = error
        self.requests: list[pb.PrepareArtifactRequest] = []

    @property
    def asked(self) -> int:
        return len(self.requests)

    async def PrepareArtifact(  # noqa: N802  # gRPC's name
        self, request: pb.PrepareArtifactRequest, context: Any
    ) -> AsyncIterator[pb.PrepareArtifactResponse]:
        self.requests.append(request)
        yield pb.PrepareArtifactResponse(progress=pb.PrepareProgress(done_bytes=1, total_bytes=2))
        if self.asked <= self.deaths:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if self.error:
            await context.abort_with_status(to_status(self.error))
        yield pb.PrepareArtifactResponse(progress=pb.PrepareProgress(done_bytes=2, total_bytes=2))

    # Nobody calls these here.
    ReadFile = ConvertCheckpoint = None  # type: ignore[assignment]


@contextlib.asynccontextmanager
async def serving(
    loader: DyingLoader, layouts: Sequence[KernelLayout | None] = (None,)
) -> AsyncIterator[LoaderVerifier]:
    server = grpc.aio.server()
    loader_pb2_grpc.add_LoaderServiceServicer_to_server(loader, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with ChannelPool() as channels, registered(f"127.0.0.1:{port}") as loaders:
            yield LoaderVerifier(channels, loaders, lambda: frozenset(layouts))
    finally:
        await server.stop(None)


async def test_a_loader_that_dies_is_followed_by_the_next() -> None:
    """Perhaps the same, started again: whoever publishes need not publish again.

    Fault injection: LoaderVerifier.verify asks once.
    """
    async with serving(loader := DyingLoader(deaths=2)) as verifier:
        steps = [step async for step in verifier.verify(ARTIFACT)]
    assert (3, Verified(2, 2)) == (loader.asked, steps[-1])


async def test_an_artifact_that_loaders_die_of_is_given_up() -> None:
    """The message is of loaders, and of what to do; it is not taken for a gateway that does not answer."""
    async with serving(loader := DyingLoader(deaths=99)) as verifier:
        with pytest.raises(Unavailable, match=r"loaders .* publish again") as given_up:
            [step async for step in verifier.verify(ARTIFACT)]
    assert (3, "LOADER_GONE") == (loader.asked, given_up.value.reason)


@pytest.mark.parametrize(
    "error", [CorruptData("block 3 is wrong"), Unavailable("the store cannot be reached")]
)
async def test_what_a_loader_says_is_passed_on(error: HalogenError) -> None:
    """In its words, once."""
    async with serving(loader := DyingLoader(deaths=0, error=error)) as verifier:
        with pytest.raises(type(error), match=error.message):
            [step async for step in verifier.verify(ARTIFACT)]
    assert 1 == loader.asked


PLAIN: Final = pb.PrepareArtifactRequest(artifact_id=ARTIFACT)
LOOK: Final = pb.PrepareArtifactRequest(artifact_id=ARTIFACT, verify_only=True)
PACK: Final = pb.PrepareArtifactRequest(artifact_id=ARTIFACT, layout=pb.WeightLayout(**PACKED32._asdict()))


@pytest.mark.parametrize(
    ("layouts", "verify_only", "requests"),
    [
        ([None], False, [PLAIN]),
        ([PACKED32], False, [PACK, LOOK]),
        ([None, PACKED32], False, [PLAIN]),
        ([], False, [LOOK]),
        ([PACKED32], True, [LOOK]),
    ],
)
async def test_what_engines_map_is_kept_and_the_artifact_itself_is_verified(
    layouts: list[KernelLayout | None], verify_only: bool, requests: list[pb.PrepareArtifactRequest]
) -> None:
    """Packed weights may lie on a disk already: they say nothing of the artifact's own bytes.

    Fault injection: turns red when LoaderVerifier has packed weights prepared alone, or plain ones beside them.
    """
    async with serving(loader := DyingLoader(deaths=0), layouts) as verifier:
        steps = [step async for step in verifier.verify(ARTIFACT, verify_only=verify_only)]
    assert (requests, Verified(2, 2)) == (loader.requests, steps[-1])
