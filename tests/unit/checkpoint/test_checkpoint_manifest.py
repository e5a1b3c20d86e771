"""Manifests: what they say is read back, and what an artifact must not have is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.checkpoint import canonical
from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.manifest import (
    PATHS,
    REQUIRED_ROLES,
    Manifest,
    ManifestFile,
    Role,
)
from services.common.checkpoint.plain_path import check_path
from services.common.checkpoint.requirements import Hosts
from services.common.errors import CorruptData, InvalidRequest
from tests.tiny_checkpoints import TinyShape, requirements_of

ARCHITECTURE = Architecture.from_config(TinyShape().config(), DType.BF16)
REQUIRES = requirements_of(ARCHITECTURE)


def manifest_of(roles: set[Role]) -> Manifest:
    files = [
        ManifestFile(path=PATHS[role], size_bytes=len(role), sha256=sha256_hex(role.encode()), role=role)
        for role in roles
    ]
    return Manifest(ARCHITECTURE, tuple(sorted(files, key=lambda file: file.path)), REQUIRES)


FULL = manifest_of(set(Role))


@given(st.sets(st.sampled_from(Role)))
def test_a_manifest_is_read_back_as_written(optional: set[Role]) -> None:
    """Decoding gives the same manifest and the same id, which is the sha256 of the text."""
    manifest = manifest_of(optional | REQUIRED_ROLES)
    text = manifest.encode()
    assert manifest == Manifest.decode(text)
    assert sha256_hex(text) == manifest.id
    assert PATHS[Role.WEIGHTS] == manifest.weights.path
    assert len(manifest.files) - 1 == len(manifest.small_files)
    assert manifest.weights == manifest.file("model.halogen")
    assert None is manifest.file("nothing.json")


@pytest.mark.parametrize("missing", sorted(REQUIRED_ROLES))
def test_a_file_that_every_artifact_needs_is_missed(missing: Role) -> None:
    """Weights, configuration and tokenizer must be there."""
    with pytest.raises(CorruptData, match=f"no {PATHS[missing]}"):
        Manifest.decode(manifest_of(set(Role) - {missing}).encode())


def add_file(fields: dict[str, Any], **changes: Any) -> None:
    fields["files"].append({**fields["files"][0], **changes})
    fields["files"].sort(key=lambda file: file["path"])


Change = Callable[[dict[str, Any]], object]

MALFORMED: dict[str, tuple[Change, str]] = {
    "other format": (lambda f: f.update(format="tar"), "not a halogen artifact"),
    "unknown field": (lambda f: f.update(signature="x"), "unknown fields"),
    "no files": (lambda f: f.update(files=[]), "no "),
    "files no list": (lambda f: f.update(files={}), "not a list"),
    "absolute path": (lambda f: f["files"][0].update(path="/etc/passwd"), "not relative"),
    "path upwards": (lambda f: f["files"][0].update(path="../config.json"), "plain name"),
    "path within": (lambda f: f["files"][0].update(path="a/../config.json"), "plain name"),
    "path with dot": (lambda f: f["files"][0].update(path="./config.json"), "plain name"),
    "path empty": (lambda f: f["files"][0].update(path=""), "1 to 255 characters"),
    "too many files": (lambda f: f.update(files=f["files"] * 5), "the most is 32"),
    "path with backslash": (lambda f: f["files"][0].update(path="..\\config.json"), "plain name"),
    "path unknown": (lambda f: f["files"][0].update(path="evil.json"), "not the name of a"),
    "path in other case": (lambda f: add_file(f, path="Chat_Template.jinja"), "not the name of a"),
    "path twice": (add_file, "share a name"),
    "role unknown": (lambda f: f["files"][0].update(role="virus"), "virus"),
    "role of another": (lambda f: f["files"][0].update(role="weights"), "not the name of a"),
    "size zero": (lambda f: f["files"][0].update(size_bytes=0), "size_bytes"),
    "size negative": (lambda f: f["files"][0].update(size_bytes=-5), "size_bytes"),
    "size huge": (lambda f: f["files"][0].update(size_bytes=1 << 40), "size_bytes"),
    "size true": (lambda f: f["files"][0].update(size_bytes=True), "not a whole number"),
    "sha short": (lambda f: f["files"][0].update(sha256="ab"), "64 hexadecimal"),
    "sha upper case": (lambda f: f["files"][0].update(sha256="AB" * 32), "64 hexadecimal"),
    "order": (lambda f: f["files"].reverse(), "not sorted"),
    "architecture missing": (lambda f: f.pop("architecture"), "no architecture"),
    "architecture extra": (lambda f: f["architecture"].update(bias=True), "unknown fields: bias"),
    "architecture impossible": (lambda f: f["architecture"].update(num_key_value_heads=3), "multiple"),
    "architecture zero": (lambda f: f["architecture"].update(head_dim=0), "head_dim"),
    "architecture of another graph": (lambda f: f["architecture"].update(vocab_size=7), "part architecture"),
    "requires missing": (lambda f: f.pop("requires"), "no requires"),
    "requires unknown": (lambda f: f["requires"].update(colour="red"), "unknown fields: colour"),
    "runtime no range": (lambda f: f["requires"].update(runtime="new"), "no range of versions"),
    "runtime two ways": (lambda f: f["requires"].update(runtime=">=1, <2"), "no range of versions"),
    "runtime long": (lambda f: f["requires"].update(runtime=">=" + "1" * 100), "no range of versions"),
    "classes unsorted": (lambda f: f["requires"].update(device_classes=["b", "a"]), "not sorted"),
    "classes twice": (lambda f: f["requires"].update(device_classes=["a", "a"]), "not sorted"),
    "classes no names": (lambda f: f["requires"].update(device_classes=[["a"]]), "no plain name"),
    "classes many": (lambda f: f["requires"].update(device_classes=[f"{i:03}" for i in range(40)]), "most is 32"),
    "precision no name": (lambda f: f["requires"].update(precisions=["BF 16"]), "no plain name"),
    "schema no name": (lambda f: f["requires"].update(input_schema=""), "no plain name"),
    "graph of another root": (lambda f: f["requires"]["graph"].update(root="0" * 64), "root is not that"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_manifest_is_refused_by_name(case: str) -> None:
    """A manifest comes from outside and is believed nothing."""
    change, expected = MALFORMED[case]
    fields = json.loads(FULL.encode())
    change(fields)
    with pytest.raises(CorruptData, match=expected):
        Manifest.decode(canonical.encode(fields))


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b"{", b" " * (2 << 20), FULL.encode() + b"\n"])
def test_what_is_no_manifest_is_refused(text: bytes) -> None:
    """Also a manifest with one byte more: its id would be another."""
    with pytest.raises(CorruptData, match=r"manifest\.json"):
        Manifest.decode(text)


@given(st.text(max_size=20))
def test_a_path_that_passes_stays_below_its_directory(path: str) -> None:
    """Whatever check_path lets through has only plain parts."""
    try:
        check_path(path)
    except ValueError:
        return
    assert all(part and part not in (".", "..") for part in path.split("/"))
    assert path.isascii()
    assert "\\" not in path


def test_the_id_changes_with_every_field() -> None:
    """Another file, size, digest or architecture is another artifact."""
    config = FULL.files[1]
    others = [
        dataclasses.replace(config, size_bytes=config.size_bytes + 1),
        dataclasses.replace(config, sha256="0" * 64),
    ]
    files = [(FULL.files[0], other, *FULL.files[2:]) for other in others]
    manifests = [dataclasses.replace(FULL, files=each) for each in files]
    manifests.append(
        dataclasses.replace(FULL, architecture=dataclasses.replace(ARCHITECTURE, rope_theta=5e5))
    )
    for hosts in (Hosts(runtime="<2"), Hosts(device_classes=("cpu",))):
        manifests.append(dataclasses.replace(FULL, requires=dataclasses.replace(REQUIRES, hosts=hosts)))
    assert 6 == len({FULL.id, *(manifest.id for manifest in manifests)})


@pytest.mark.parametrize("version", [1, 3])
def test_a_manifest_of_another_version_is_refused_with_the_remedy(version: int) -> None:
    """Artifacts made before there were requirements are converted anew; nothing is assumed for them."""
    fields = json.loads(FULL.encode()) | {"version": version}
    with pytest.raises(InvalidRequest, match=f"version {version}; .*halogen convert") as raised:
        Manifest.decode(canonical.encode(fields))
    assert "FORMAT_VERSION" == raised.value.reason
