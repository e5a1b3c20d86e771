"""Artifacts whose headers lie: digests, lengths and manifest agree with what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from services.common.checkpoint import canonical
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.file_format import WEIGHTS_NAME
from services.common.checkpoint.header import Header
from services.common.checkpoint.manifest import Manifest
from tests.tiny_checkpoints import make_tiny_artifact
from tests.unit.checkpoint.fuzz_target import seal
from tests.unit.checkpoint.scaled_artifact import name_weights

Lie = Callable[[dict[str, Any]], object]


def moved(tensor: int, by: int) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        fields["tensors"][tensor]["offset"] += by

    return lie


LIES: Final[dict[str, tuple[Lie, str]]] = {
    "overlapping": (moved(1, -4096), "overlaps model.embed_tokens.weight"),
    "unaligned": (moved(1, 256), "does not start on 4096 bytes"),
    "past the end": (moved(-1, 1 << 40), "lies outside the data"),
    "unknown dtype": (lambda fields: fields["tensors"][0].update(dtype="fp7"), "'fp7'"),
    "endless data": (lambda fields: fields.update(data_bytes=1 << 50), f"digests for {1 << 28} blocks"),
    "a tensor twice": (lambda fields: fields["tensors"].append(fields["tensors"][-1]), "is there twice"),
}


def make_forged_artifact(directory: Path, lie: Lie) -> tuple[Path, Manifest]:
    """A tiny artifact whose header `lie` has changed; its data are as they were."""
    artifact, manifest = make_tiny_artifact(directory)
    path = artifact / WEIGHTS_NAME
    content = path.read_bytes()
    header = Header.decode(content)
    fields = json.loads(header._json())
    lie(fields)
    text = canonical.encode(fields)
    path.write_bytes(seal(text) + content[header.data_offset :])
    return artifact, name_weights(artifact, manifest, sha256_hex(text))
