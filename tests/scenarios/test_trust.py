"""Signed artifacts: a system that trusts certain keys serves what their holders have signed, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli.console import CommandError
from services.common.checkpoint.artifact_store import StoredArtifact
from tests.scenarios.cluster import Cluster
from tests.signing import key, signed_by
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]


# Turns red when: the role named is not given its trusted_keys in serve.py.
@pytest.mark.parametrize("role", ["gateway", "loader"])
async def test_an_unsigned_artifact_is_rejected_and_a_signed_one_is_served(
    start: Start, tmp_path: Path, role: str
) -> None:
    """Whichever of the two is told whom to trust; after signing, the advice that was given works."""
    system: Cluster = await start("in_process", **{role: {"trusted_keys": (key(1).public_key,)}})
    artifact, manifest = make_tiny_artifact(tmp_path / "model")
    with pytest.raises(CommandError, match=r"REJECTED: UNTRUSTED: .* is not signed"):
        await system.publish("m", artifact)
    StoredArtifact(artifact, manifest).write_signatures(signed_by(manifest.id, 1))
    published = await system.publish("m", artifact, reverify=True)
    assert (1, manifest.id) == (published.revision, published.artifact_id)
    async with system.client() as client:
        answer = await client.generate([3, 4, 5], max_tokens=2, ignore_eos=True).complete()
    assert 2 == len(answer.token_ids)
