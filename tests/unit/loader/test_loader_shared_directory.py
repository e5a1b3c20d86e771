"""The directory that loaders share: what may go and what stays, for whom it is readable, whose it is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from services.loader.shared_directory import HeldFile, SharedDirectory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "weights"


def finish(directory: SharedDirectory, name: str) -> HeldFile:
    unfinished = directory.create(name)
    os.write(unfinished.descriptor, name.encode())
    return unfinished.finish()


def test_the_last_one_out_removes_it(path: Path) -> None:
    """With all that is in it, also what a killed one left; before, only its own name goes."""
    first, second = SharedDirectory.open(path), SharedDirectory.open(path)
    mine, theirs = finish(first, "a"), finish(second, "b")
    (path / ".c.writing").touch()
    mine.release()
    first.close()
    assert {"b", ".c.writing"} == {each.name for each in path.iterdir()}
    theirs.let_go()
    second.close()
    assert not path.exists()


def test_a_name_that_others_hold_stays(path: Path) -> None:
    """Whoever counts on the file finds it."""
    first, second = SharedDirectory.open(path), SharedDirectory.open(path)
    mine = finish(first, "a")
    theirs = second.find("a")
    assert theirs is not None
    mine.release()
    assert ["a"] == second.finished()
    theirs.release()
    assert [] == second.finished()
    for directory in (first, second):
        directory.close()


def test_what_was_let_go_first_is_evicted_first(path: Path) -> None:
    """What is held never is."""
    directory = SharedDirectory.open(path)
    held = {name: finish(directory, name) for name in "abc"}
    held["b"].let_go()
    held["a"].let_go()
    assert ["b", "a", None] == [directory.evict() for _ in range(3)]
    assert held["c"].path.exists()
    held["c"].release()
    directory.close()


async def test_only_what_nobody_is_writing_is_swept(path: Path) -> None:
    """A maker has the name's turn, or is dead."""
    directory = SharedDirectory.open(path)
    for name in "ab":
        (path / f".{name}.writing").touch()
    async with directory.turn("a"):
        await asyncio.to_thread(directory.sweep)
    assert [".a.writing"] == [each.name for each in path.iterdir()]
    directory.close()


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_everybody_may_read_and_nobody_write_whatever_the_umask(path: Path, umask: int) -> None:
    """Engines run as other users.

    Fault injection: UnfinishedFile.finish leaves the mode as it is.
    """
    before = os.umask(umask)
    try:
        directory = SharedDirectory.open(path)
        held = finish(directory, "a")
    finally:
        os.umask(before)
    assert (0o755, 0o444) == (path.stat().st_mode & 0o777, held.path.stat().st_mode & 0o777)
    held.release()
    directory.close()


def test_another_users_directory_is_not_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /dev/shm anybody may have made one of that name, or a link."""
    path.mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        SharedDirectory.open(path)
    monkeypatch.undo()
    path.rmdir()
    path.symlink_to(path.parent)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        SharedDirectory.open(path)


def test_a_directory_removed_meanwhile_is_made_anew(path: Path) -> None:
    """By the last one out, between finding it there and holding it."""
    last = SharedDirectory.open(path)
    path.rename(path.with_name("elsewhere"))
    new = SharedDirectory.open(path)
    assert (False, True) == (last.is_there, new.is_there)
    last.close()
    assert path.exists(), "who was renamed away takes nothing of the new one's along"
    new.close()
