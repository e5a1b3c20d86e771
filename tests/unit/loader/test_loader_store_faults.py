"""Whatever an HTTP store does wrong has a clear end, and no wrong byte comes of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.common.checkpoint.artifact_store import ArtifactStore, StoredArtifact
from services.common.checkpoint.digest import BLOCK_BYTES
from services.common.checkpoint.header import Header
from services.common.errors import (
    CorruptData,
    HalogenError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from services.common.ids import ArtifactId
from services.loader.cached_artifacts import VERSIONS
from services.loader.http_store import HttpOptions
from tests.signing import signed_by, trusting
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.checkpoint.scaled_artifact import make_scaled_artifact
from tests.unit.loader.cached import Heard, bring_all, content_of, files_in, open_cached
from tests.unit.loader.disk import open_descriptors
from tests.unit.loader.store_server import StoreServer, store_server

WEIGHTS, TOKENIZER, MANIFEST = "model.halogen", "tokenizer.json", "manifest.json"


def _spoil(offset: int) -> Callable[[str, bytearray], None]:
    def spoil(name: str, content: bytearray) -> None:
        if name == WEIGHTS:
            content[offset] ^= 1

    return spoil


@pytest.mark.parametrize("block", [0, 1, 2])
async def test_a_wrong_byte_is_refused_by_its_block(
    server: StoreServer, stored: StoredArtifact, header: Header, cache_dir: Path, block: int
) -> None:
    """No file comes of it; once the store is right, only what is missing is fetched.

    Fault injection: BlockDownload._verify_and_write writes without looking at the digest.
    """
    right, server.spoil = server.spoil, _spoil(header.block_extent(block)[1] - 1)
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(CorruptData, match=rf"model\.halogen: block {block} of 3 .* in the store"):
            await bring_all(artifacts, stored.manifest.id)
        assert stored.manifest.weights.sha256 not in files_in(cache_dir)
        server.spoil = right
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)


async def test_a_block_spoilt_on_its_way_is_asked_for_again(
    server: StoreServer, stored: StoredArtifact, header: Header, cache_dir: Path
) -> None:
    """Once: the second time it is the store that is wrong."""
    wrong = _spoil(header.block_extent(1)[0])

    def spoil_once(name: str, content: bytearray) -> None:
        if len(server.asked_for(WEIGHTS)) == 3:
            wrong(name, content)

    server.spoil = spoil_once
    async with open_cached(server.url, cache_dir, connections=1) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(1, "not a weight file"), (70, "do not match its sha256"), (40, "do not match its sha256")],
)
async def test_a_wrong_header_is_refused_before_any_data_is_asked_for(
    server: StoreServer, stored: StoredArtifact, header: Header, cache_dir: Path, offset: int, expected: str
) -> None:
    """Magic, identity and text."""
    server.spoil = _spoil(offset)
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(CorruptData, match=expected):
            await bring_all(artifacts, stored.manifest.id)
    assert all((each.end or 0) <= header.data_offset for each in server.asked_for(WEIGHTS))


async def test_a_small_file_is_refused_by_its_name(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """And never lies in the cache."""

    def spoil(name: str, content: bytearray) -> None:
        if name == TOKENIZER:
            content[9] ^= 1

    server.spoil = spoil
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(CorruptData, match=r"tokenizer\.json does not match"):
            await bring_all(artifacts, stored.manifest.id)
    file = stored.manifest.file(TOKENIZER)
    assert file is not None
    assert file.sha256 not in files_in(cache_dir)


async def test_a_manifest_that_is_anothers_is_refused(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """The id names its manifest."""
    server.spoil = lambda name, content: content.reverse() if name == MANIFEST else None
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(CorruptData, match="is another artifact's; upload"):
            await bring_all(artifacts, stored.manifest.id)


async def test_a_scale_that_is_no_number_never_enters_the_cache(
    tmp_path: Path, store: ArtifactStore, server: StoreServer, cache_dir: Path
) -> None:
    """Its digests are right: to fetch it again would help nobody."""
    artifact, manifest = make_scaled_artifact(tmp_path / "scaled", bytes.fromhex("003c 007e"))
    store.put(artifact)
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(CorruptData, match="not a finite number") as failure:
            await bring_all(artifacts, manifest.id)
        assert not await artifacts.mend(manifest.id, failure.value)
    assert manifest.weights.sha256 not in files_in(cache_dir)


Wish = Callable[[StoreServer, StoredArtifact], object]

WISHES: dict[str, tuple[Wish, type[HalogenError], str]] = {
    "manifest not there": (lambda server, stored: (stored.directory / MANIFEST).unlink(), NotFound, "upload the artifact's files there, its manifest last"),
    "weights not there": (lambda server, stored: (stored.directory / WEIGHTS).unlink(), NotFound, r"model\.halogen is not in the store"),
    "tokenizer not there": (lambda server, stored: (stored.directory / TOKENIZER).unlink(), NotFound, r"tokenizer\.json is not in the store"),
    "manifest forbidden": (lambda server, stored: server.statuses.update({MANIFEST: [403]}), PreconditionFailed, "answers 403; let this loader read it"),
    "weights forbidden": (lambda server, stored: server.statuses.update({WEIGHTS: [401]}), PreconditionFailed, r"model\.halogen: the store answers 401"),
    "always failing": (lambda server, stored: server.statuses.update({WEIGHTS: [500] * 9}), Unavailable, "it answers 500"),
    "always busy": (lambda server, stored: server.statuses.update({MANIFEST: [429] * 9}), Unavailable, "it answers 429"),
    "weights cut": (lambda server, stored: os.truncate(stored.directory / WEIGHTS, 8192), CorruptData, r"model\.halogen has 8192 bytes in the store, not \d+"),
    "weights longer": (lambda server, stored: os.truncate(stored.directory / WEIGHTS, 1 << 30), CorruptData, r"model\.halogen has \d+ bytes in the store"),
    "weights empty": (lambda server, stored: os.truncate(stored.directory / WEIGHTS, 0), CorruptData, r"model\.halogen"),
    "tokenizer always breaking off": (lambda server, stored: server.cuts.update({TOKENIZER: [100] * 9}), Unavailable, "its answer is cut off"),
    "manifest always breaking off": (lambda server, stored: server.cuts.update({MANIFEST: [100] * 9}), Unavailable, "its answer is cut off"),
    "tokenizer cut": (lambda server, stored: os.truncate(stored.directory / TOKENIZER, 10), CorruptData, r"tokenizer\.json has 10 bytes"),
    "a redirect to a file": (lambda server, stored: server.redirects.update({WEIGHTS: "file:///etc/passwd"}), PreconditionFailed, "redirects from http to file"),
    "a redirect to another scheme": (lambda server, stored: server.redirects.update({MANIFEST: "https://127.0.0.1/"}), PreconditionFailed, "redirects from http to https"),
    "a redirect to nowhere": (lambda server, stored: server.redirects.update({MANIFEST: "data:,x"}), PreconditionFailed, "redirects from http to data"),
    "redirects in a circle": (lambda server, stored: server.redirects.update({WEIGHTS: WEIGHTS}), PreconditionFailed, "redirects more than 5 times"),
}  # fmt: skip


# Turns red when: redirected follows to any scheme; RangeAnswer.of takes every status for an answer.
@pytest.mark.parametrize("wish", WISHES)
async def test_r_f2_whatever_a_store_answers_has_a_clear_end(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path, wish: str
) -> None:
    """Named by file and remedy; no descriptor, no turn and no finished file is left, and another artifact comes."""
    how, kind, expected = WISHES[wish]
    how(server, stored)
    before = open_descriptors()
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(kind, match=expected):
            await bring_all(artifacts, stored.manifest.id)
    assert set() == open_descriptors() - before
    assert not [name for name in files_in(cache_dir) if name.endswith(".turn")]
    assert stored.manifest.weights.sha256 not in files_in(cache_dir)


async def test_passing_failures_are_no_news(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """Some in a row, of every kind."""
    server.statuses = {MANIFEST: [500], WEIGHTS: [503], TOKENIZER: [408], "config.json": [429, 502]}
    server.cuts = {MANIFEST: [100], TOKENIZER: [1000], WEIGHTS: [10, 1000]}
    async with open_cached(server.url, cache_dir) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_file_that_changes_meanwhile_is_said_to(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path, ranges: bool
) -> None:
    """By its version, before a byte of another version is taken, and after a few tries for good: so do replicas that
    disagree. What was verified stays for whoever asks once the store is right.

    Fault injection: HttpFile._check does not compare versions; CachedArtifacts tries for ever, or twice as often;
    HttpFile._headers sends weak versions, too.
    """
    server.ranges = ranges
    changes = 4 * VERSIONS  # who tries for ever comes to an end
    server.version = lambda name: f'"{name}-{min(len(server.asked_for(WEIGHTS)), changes)}"'
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(PreconditionFailed, match=r"model\.halogen comes .* the same ETag") as failure:
            await bring_all(artifacts, stored.manifest.id)
        assert ("SOURCE_CHANGED", None) == (failure.value.reason, failure.value.retry_after_s)
        assert 2 * VERSIONS == len(server.asked_for(WEIGHTS))
        server.version = lambda name: f'W/"{name}"'
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)


async def test_a_change_in_the_middle_costs_nothing_that_was_verified(
    server: StoreServer, stored: StoredArtifact, header: Header, cache_dir: Path
) -> None:
    """The other version is gone on with from there, and the progress ends where it is said to."""
    server.version = lambda name: f'"{name}-{len(server.asked_for(WEIGHTS)) > 3}"'
    server.cuts[WEIGHTS] = [BLOCK_BYTES + 5]
    heard = Heard()
    async with open_cached(server.url, cache_dir, connections=1) as artifacts:
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id, heard)
    assert header.block_extent(1)[0] == server.asked_for(WEIGHTS)[-1].begin
    assert heard.expected_bytes == heard.done_bytes


async def test_a_slow_store_is_waited_for(
    tmp_path: Path, store: ArtifactStore, server: StoreServer, cache_dir: Path
) -> None:
    """At 100 kB/s everything comes in its time."""
    directory, manifest = make_tiny_artifact(tmp_path)
    store.put(directory)
    server.bytes_per_s = 100_000
    async with open_cached(server.url, cache_dir) as artifacts:
        assert content_of(store.open(manifest.id)) == await bring_all(artifacts, manifest.id)


async def test_a_store_that_falls_silent_is_given_up(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """After its time without a byte, again and again."""
    server.gates[WEIGHTS] = asyncio.Event()
    impatient = HttpOptions(timeout_s=0.05, tries=2, first_pause_s=0.001, most_pause_s=0.001)
    async with open_cached(server.url, cache_dir, options=impatient) as artifacts:
        with pytest.raises(Unavailable, match="says nothing for too long"):
            await bring_all(artifacts, stored.manifest.id)


async def test_the_token_goes_to_the_store_alone(
    server: StoreServer, store: ArtifactStore, stored: StoredArtifact, cache_dir: Path
) -> None:
    """Where it redirects to another host, that one does not get it."""
    options = HttpOptions(token="secret", first_pause_s=0.001)
    async with (
        store_server(store.root) as other,
        open_cached(server.url, cache_dir, options=options) as artifacts,
    ):
        server.redirects[WEIGHTS] = f"{other.url}{stored.manifest.id}/{WEIGHTS}"
        assert content_of(stored) == await bring_all(artifacts, stored.manifest.id)
        assert {"Bearer secret"} == {each.authorization for each in server.asked}
        assert {""} == {each.authorization for each in other.asked}


@pytest.mark.parametrize("wrong", ["", "..", "A" * 64, "../" + "0" * 61, "%2e%2e", "0" * 63 + "/"])
async def test_r_f2_only_ids_are_looked_for(server: StoreServer, cache_dir: Path, wrong: str) -> None:
    """Nothing that is not an id becomes a part of a path or of a URL.

    Turns red when: CachedArtifacts.opened does not look at the id.
    """
    async with open_cached(server.url, cache_dir) as artifacts:
        with pytest.raises(InvalidRequest, match="64 lower-case hexadecimal digits"):
            await bring_all(artifacts, ArtifactId(wrong))
    assert [] == server.asked


async def test_signatures_come_from_the_store_when_those_here_do_not_do(
    server: StoreServer, stored: StoredArtifact, cache_dir: Path
) -> None:
    """An artifact may be signed after it was fetched, and signed again with another key; nobody asks without need.

    Turns red when: CachedArtifacts.opened does not look at the signatures that it has.
    """
    artifact_id = stored.manifest.id
    async with open_cached(server.url, cache_dir) as anybody:
        async with anybody.opened(artifact_id) as fetched:
            assert b"" == await anybody.signatures(fetched)
        await bring_all(anybody, artifact_id)
    for number in (1, 2):
        stored.write_signatures(signed_by(artifact_id, number))
        async with open_cached(server.url, cache_dir, trust=trusting(number)) as artifacts:
            for _ in range(2):
                async with artifacts.opened(artifact_id) as fetched:
                    assert signed_by(artifact_id, number) == await artifacts.signatures(fetched)
                    fetched.check()
    assert 3 == len(server.asked_for("manifest.sig"))
