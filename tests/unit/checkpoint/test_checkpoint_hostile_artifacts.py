"""Artifacts made to do harm: refused before anything is written, whatever they name and whatever lies in them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.common.checkpoint import canonical
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.manifest import MAX_FILES, MAX_SMALL_FILE_BYTES
from services.common.checkpoint.plain_path import check_path
from services.common.errors import CorruptData, HalogenError
from tests.tiny_checkpoints import make_tiny_artifact

HOSTILE = (
    *("/etc/passwd", "//etc/passwd", "/", "../config.json", "..", ".", "a/../../etc/passwd", "a/..", "a/./b"),
    *("a//b", "a/", "", "..\\..\\etc", "C:\\x", "c:/x", "\\\\host\\share", "config.json\0.txt", "a\nb"),
    *("%2e%2e/x", "..%2fx", "%00", "file:///etc/passwd", "http://host/x", "config.json#x", "config.json?x"),
    *("~root/x", "a" * 129, "/".join(["a"] * 200), "con", "AUX.json", "com1.tar.gz", "config.json.", "a b"),
    *("naïve.json", "cоnfig.json", "\u202egnp.exe", "$HOME", "*", "a|b", "-\t"),
)
STRANGE = ("evil.json", "Config.json", "CONFIG.JSON", "tokenizer.model", "a/config.json", ".config.json")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A good artifact, to be spoilt."""
    return make_tiny_artifact(tmp_path)[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ArtifactStore]:
    """A store in which nothing may have been written in the end."""
    root = tmp_path / "store"
    yield ArtifactStore(root)
    assert not root.exists()


def rename_first(source: Path, path: str) -> None:
    """The manifest calls its first file by another name."""
    fields = json.loads((source / "manifest.json").read_bytes())
    fields["files"][0]["path"] = path
    (source / "manifest.json").write_bytes(canonical.encode(fields))


# Turns red when: in manifest._decode_file neither check_path is called nor the path compared with its role's.
@pytest.mark.parametrize("path", [*HOSTILE, *STRANGE], ids=ascii)
def test_r_f1_a_hostile_name_is_refused_before_anything_is_written(
    source: Path, store: ArtifactStore, path: str
) -> None:
    """Absolute, upwards, percent-encoded, reserved, overlong, look-alike: 46 names, none of which is a file's."""
    rename_first(source, path)
    with pytest.raises(CorruptData, match=r"manifest\.json: path .*(again|convert)"):
        store.put(source)
    with pytest.raises(CorruptData):
        store.replace(source, lambda _: None)


# Turns red when: in plain_path._is_plain any one of the three conditions is left out.
@pytest.mark.parametrize("path", HOSTILE, ids=ascii)
def test_r_f1_a_hostile_path_is_refused_wherever_paths_are_taken(path: str) -> None:
    """An index of shards has no closed list of names, so the path itself must be plain."""
    with pytest.raises(ValueError, match="path"):
        check_path(path)


@pytest.mark.parametrize("path", ["config.json", "model-00001-of-00002.safetensors", "a/b.c", "x" * 128])
def test_a_plain_path_is_taken(path: str) -> None:
    """The bounds leave room for what people use."""
    check_path(path)


def link_out(source: Path) -> None:
    (source / "config.json").rename(source.with_name("elsewhere"))
    (source / "config.json").symlink_to(source.with_name("elsewhere"))


def link_to_nothing(source: Path) -> None:
    (source / "config.json").unlink()
    (source / "config.json").symlink_to("/nowhere/at/all")


def device(source: Path) -> None:
    (source / "config.json").unlink()
    (source / "config.json").symlink_to("/dev/zero")


def pipe(path: str) -> Callable[[Path], None]:
    def make(source: Path) -> None:
        (source / path).unlink(missing_ok=True)
        os.mkfifo(source / path)

    return make


def bind_socket(source: Path) -> None:
    (source / "config.json").unlink()
    os.mknod(source / "config.json", stat.S_IFSOCK | 0o600)


def directory(source: Path) -> None:
    (source / "config.json").unlink()
    (source / "config.json").mkdir()


def add(name: str) -> Callable[[Path], None]:
    return lambda source: (source / name).touch()


def flood(source: Path) -> None:
    for number in range(100):
        (source / f"{number}").touch()


def hide(source: Path) -> None:
    (source / ".cache").mkdir()
    (source / ".cache" / "payload.py").touch()


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "link out of the artifact": (link_out, r"config\.json is not a plain file"),
    "link to nothing": (link_to_nothing, r"config\.json is not a plain file"),
    "link to a device": (device, r"config\.json is not a plain file"),
    "pipe": (pipe("config.json"), r"config\.json is not a plain file"),
    "pipe as manifest": (pipe("manifest.json"), r"manifest\.json is not a plain file"),
    "socket": (bind_socket, r"config\.json is not a plain file"),
    "directory": (directory, r"config\.json is not a plain file"),
    "missing": (lambda s: (s / "config.json").unlink(), r"config\.json is missing"),
    "in another case": (lambda s: (s / "config.json").rename(s / "Config.json"), r"'Config\.json' lies in"),
    "in two cases": (add("CONFIG.JSON"), r"'CONFIG\.JSON' lies in"),
    "one more": (add("notes.txt"), r"'notes\.txt' lies in"),
    "with a line break": (add("a\nb"), r"'a\\nb' lies in"),
    "with a backslash": (add("..\\x"), r"lies in the artifact's directory"),
    "percent-encoded": (add("%2e%2e"), "'%2e%2e' lies in"),
    "hidden": (hide, r"'\.cache' lies in"),
    "a hundred more": (flood, "more than 64 entries"),
}


# Turns red when: ArtifactStore._copied does not call check_directory, or open_plain follows links.
@pytest.mark.parametrize("case", SPOILT)
def test_r_f1_what_is_no_plain_file_is_refused_before_anything_is_written(
    source: Path, store: ArtifactStore, case: str
) -> None:
    """Links, devices, pipes and sockets, and names that the manifest does not have."""
    spoil, expected = SPOILT[case]
    spoil(source)
    with pytest.raises(CorruptData, match=expected):
        store.put(source)


# Turns red when: check_directory does not compare what is there with what the manifest names.
@pytest.mark.parametrize("name", ["payload.py", "model-00002.halogen", "manifest.json.bak", "MANIFEST.JSON"])
def test_r_f4_an_unknown_file_is_refused(source: Path, store: ArtifactStore, name: str) -> None:
    """Every file has a sha256 in the manifest; one that has none is named, with the remedy."""
    (source / name).write_text("x")
    with pytest.raises(CorruptData, match="remove it") as raised:
        store.put(source)
    assert ("UNKNOWN_FILE", name) == (raised.value.reason, raised.value.metadata["file"])


@pytest.mark.parametrize("sha256", ["", "d41d8cd98f00b204e9800998ecf8427e", None])
def test_r_f4_a_file_without_sha256_is_refused(
    source: Path, store: ArtifactStore, sha256: str | None
) -> None:
    """No digest, or MD5's, is none. Turns red when: manifest._decode_file does not look at the digest's form."""
    fields = json.loads((source / "manifest.json").read_bytes())
    fields["files"][0]["sha256"] = sha256
    (source / "manifest.json").write_bytes(canonical.encode(fields))
    with pytest.raises(CorruptData, match="sha256"):
        store.put(source)


def test_too_many_files_or_bytes_are_refused(source: Path, store: ArtifactStore) -> None:
    """The bounds hold before anything is looked at or written."""
    fields = json.loads((source / "manifest.json").read_bytes())
    one = fields["files"][0]
    for files, expected in (
        ([one] * (MAX_FILES + 1), f"the most is {MAX_FILES}"),
        ([{**one, "size_bytes": MAX_SMALL_FILE_BYTES + 1}], "size_bytes"),
    ):
        (source / "manifest.json").write_bytes(canonical.encode({**fields, "files": files}))
        with pytest.raises(CorruptData, match=expected):
            store.put(source)


def test_a_store_has_one_of_the_known_schemes(tmp_path: Path) -> None:
    """What a URL says otherwise is not tried."""
    for location in ("ftp://host/x", "gopher://x", "s3://bucket/x", "jar:file:///x!/y", "file://host/etc"):
        with pytest.raises(HalogenError, match="give a directory"):
            ArtifactStore.at(location)
