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
from tests.credentials import write_secret
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
    write_secret(token, "first-secret\n")
    async with registry_server() as other, ModelRegistry(_config(server, token)) as registry:
        await registry.put(M, TWO, DOCUMENT)
        write_secret(token, "second-secret\n")
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
    ("name", "content", "mode", "reason", "words"),
    [
        ("token_file", None, 0o600, "REGISTRY_TOKEN_UNREADABLE", "no such file"),
        ("token_file", "two\nlines", 0o600, "REGISTRY_TOKEN_UNREADABLE", "not one word"),
        ("token_file", "two words", 0o600, "REGISTRY_TOKEN_UNREADABLE", "not one word"),
        ("token_file", "\n", 0o600, "REGISTRY_TOKEN_UNREADABLE", "not one word"),
        ("token_file", "secret", 0o644, "REGISTRY_TOKEN_UNREADABLE", "chmod 600"),
        ("ca_file", None, 0o600, "REGISTRY_CA_UNREADABLE", "cannot be read"),
        ("ca_file", "no certificate", 0o600, "REGISTRY_CA_UNREADABLE", "cannot be read"),
    ],
)
async def test_files_that_cannot_be_used_fail_the_push_and_no_scheduler(
    tmp_path: Path, name: str, content: str | None, mode: int, reason: str, words: str
) -> None:
    """Told by the name of their setting, not by their path. A token is held to what the processes' own is.

    Fault injection: turns red when `ModelRegistry` reads them as its scope begins, or `token_in` without `read_token`.
    """
    file = tmp_path / "file"
    if content is not None:
        write_secret(file, content)
        file.chmod(mode)
    async with ModelRegistry(ModelRegistryConfig(url="https://registry", **{name: file})) as registry:
        with pytest.raises(PreconditionFailed) as caught:
            await registry.put(M, TWO, DOCUMENT)
    failure = caught.value
    assert reason == failure.reason
    assert words in failure.message
    assert (f"--registry.{name.replace('_', '-')}" in failure.message, str(tmp_path) in failure.message) == (
        True,
        False,
    )
