"""What a registry of models is sent, and what becomes of its answers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import HalogenError, PreconditionFailed, Unavailable
from services.common.ids import ModelName, Revision
from services.common.model_registry_config import ModelRegistryConfig
from services.scheduler.model_registry import ModelRegistry
from tests.unit.scheduler.registry_server import RegistryServer, black_hole, registry_server

M, TWO = ModelName("m"), Revision(2)
DOCUMENT = b'{"model":"m"}'


@pytest.fixture
async def server() -> AsyncIterator[RegistryServer]:
    async with registry_server() as running:
        yield running


async def put(url: str, **settings: Any) -> None:
    async with ModelRegistry(ModelRegistryConfig(url=url, **settings)) as registry:
        await registry.put(M, TWO, DOCUMENT)


async def refusal(url: str, **settings: Any) -> HalogenError:
    with pytest.raises(HalogenError) as caught:
        await put(url, **settings)
    return caught.value


async def test_a_document_is_put_where_model_and_revision_say(server: RegistryServer) -> None:
    """With its digest; sent again it is the same. Of the answer, a megabyte long, only the status counts."""
    await put(server.url)
    await put(server.url + "/")
    digest = base64.b64encode(hashlib.sha256(DOCUMENT).digest()).decode()
    assert {"/base/models/m/revisions/2": DOCUMENT} == server.taken
    assert [f"sha-256=:{digest}:"] * 2 == [each.headers["Content-Digest"] for each in server.puts]
    assert ["Authorization" in each.headers for each in server.puts] == [False, False]


async def test_the_token_goes_to_the_registry_and_nowhere_else(
    server: RegistryServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read anew each time; a redirect is followed neither with nor without it; no message has it.

    Fault injection: turns red when `put` follows redirects.
    """
    token = tmp_path / "token"
    token.write_text("first-secret\n")
    async with registry_server() as other, ModelRegistry(_config(server, token)) as registry:
        await registry.put(M, TWO, DOCUMENT)
        token.write_text("second-secret\n")
        server.statuses, server.location = [307], f"{other.url}/models/m/revisions/2"
        with pytest.raises(PreconditionFailed, match="redirects") as caught:
            await registry.put(M, TWO, DOCUMENT)
        assert [] == other.puts
    sent = [each.headers["Authorization"] for each in server.puts]
    assert ["Bearer first-secret", "Bearer second-secret"] == sent
    assert "secret" not in f"{caught.value.message}{capfd.readouterr()}"


def _config(server: RegistryServer, token: Path) -> ModelRegistryConfig:
    return ModelRegistryConfig(url=server.url, token_file=token)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (503, (Unavailable, "PUSH_NOT_TAKEN")),
        (429, (Unavailable, "PUSH_NOT_TAKEN")),
        (401, (PreconditionFailed, "PUSH_REFUSED")),
        (409, (PreconditionFailed, "PUSH_REFUSED")),
        (302, (PreconditionFailed, "PUSH_REDIRECTED")),
    ],
)
async def test_an_answer_tells_whether_another_try_may_help(
    server: RegistryServer, status: int, expected: tuple[type, str]
) -> None:
    """What is passing is Unavailable; what would be refused again is not tried again."""
    server.statuses, server.location = [status], server.url
    failure = await refusal(server.url)
    assert expected == (type(failure), failure.reason)
    assert str(status) in failure.message


async def test_a_registry_that_does_not_answer_is_given_up() -> None:
    """It listens and says nothing, or nobody listens. Turns red when: `ModelRegistry` sets no total timeout."""
    async with black_hole() as hole:
        failure = await refusal(hole.url, timeout_s=0.1)
        assert (Unavailable, "PUSH_TIMED_OUT") == (type(failure), failure.reason)
    failure = await refusal(hole.url)
    assert (Unavailable, "PUSH_UNREACHABLE") == (type(failure), failure.reason)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("token_file", None, "REGISTRY_TOKEN_UNREADABLE"),
        ("token_file", "two\nlines", "REGISTRY_TOKEN_UNREADABLE"),
        ("ca_file", None, "REGISTRY_CA_UNREADABLE"),
        ("ca_file", "no certificate", "REGISTRY_CA_UNREADABLE"),
    ],
)
async def test_files_that_cannot_be_read_fail_the_push_and_no_scheduler(
    tmp_path: Path, name: str, content: str | None, reason: str
) -> None:
    """Told by the name of their setting, not by their path.

    Fault injection: turns red when `ModelRegistry` reads them as its scope begins.
    """
    file = tmp_path / "file"
    if content is not None:
        file.write_text(content)
    async with ModelRegistry(ModelRegistryConfig(url="https://registry", **{name: file})) as registry:
        with pytest.raises(PreconditionFailed) as caught:
            await registry.put(M, TWO, DOCUMENT)
    failure = caught.value
    assert reason == failure.reason
    assert (f"--registry.{name.replace('_', '-')}" in failure.message, str(tmp_path) in failure.message) == (
        True,
        False,
    )
