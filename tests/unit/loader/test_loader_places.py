"""Places: tried in order, each refusal with its reason, nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from services.loader.directory_place import DirectoryPlace, file_holding
from services.loader.memfd_place import MemfdPlace
from services.loader.mounts import Mount, mount_of, parse_mounts
from services.loader.place import Holding, Place, PlaceKind
from services.loader.places import choose_places, folder_name, sweep_abandoned
from services.loader.reservation import Reservation
from services.loader.shared_mapping import SharedMapping
from services.loader.smaps import parse_smaps
from tests.unit.loader.disk import open_descriptors, touch

SIZE = (4 << 20) + 4096


@pytest.fixture(params=PlaceKind)
def place(request: pytest.FixtureRequest, shm: Path, tmp_path: Path) -> Iterator[Place]:
    """One of each kind."""
    places: dict[PlaceKind, Place] = {
        PlaceKind.TMPFS: DirectoryPlace(PlaceKind.TMPFS, shm / "weights"),
        PlaceKind.DEV_SHM: DirectoryPlace(PlaceKind.DEV_SHM, shm / "weights"),
        PlaceKind.MEMFD: MemfdPlace(),
        PlaceKind.FILE: DirectoryPlace(PlaceKind.FILE, tmp_path / "made" / "when" / "needed"),
    }
    place = places[request.param]
    yield place
    place.close()


def test_what_is_written_can_be_mapped(place: Place) -> None:
    """The published file is whole, read-only, and gone from sight once released."""
    reservation = Reservation.take(place, "weights", SIZE)
    for begin, end in ((0, 4 << 20), (4 << 20, SIZE)):
        with reservation.sink.window(begin, end) as window:
            window[:] = bytes([begin % 251 + 1]) * (end - begin)
    holding = reservation.publish()
    descriptor = os.open(holding.mapped_path, os.O_RDONLY)
    with mmap.mmap(descriptor, SIZE, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        assert bytes([1]) * (4 << 20) == mapped[: 4 << 20]
        assert (place.kind, SIZE) == (holding.kind, holding.size_bytes)
        assert 0 == os.fstat(descriptor).st_mode & 0o222
        holding.release()
        assert not Path(holding.mapped_path).exists()
        assert 1 == mapped[0], "whoever maps it keeps its pages"
    os.close(descriptor)


def test_nothing_is_visible_before_it_is_published(place: Place, shm: Path) -> None:
    """A reader cannot find a file that is still being written, and a discarded one leaves nothing."""
    reservation = Reservation.take(place, "weights", SIZE)
    assert [] == [path for path in shm.rglob("weights") if path.is_file()]
    reservation.discard()
    assert [] == [path for path in shm.rglob("*") if path.is_file()]


def broken(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize(
    "step",
    [
        "services.loader.directory_place._check_size",
        "services.loader.shared_directory.try_lock",
        "services.loader.shared_mapping.SharedMapping.populate",
        "services.loader.shared_mapping.SharedMapping.make_read_only",
        "services.loader.shared_mapping.mmap.mmap",
        "os.ftruncate",
        "os.fchmod",
        "fcntl.fcntl",
        "pathlib.Path.rename",
        "os.utime",
    ],
)
def test_whatever_fails_on_the_way_of_a_file_leaves_nothing(
    place: Place, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Neither a name nor a descriptor, at whichever exit: reserving, publishing, releasing.

    Fault injection: Reservation.publish names the file before it makes the mapping read-only, or discards nothing.
    """
    place.shared(make=True)
    before = open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(step, broken)
        with contextlib.suppress(OSError):
            Reservation.take(place, "weights", SIZE).publish().release()
    gc.collect()
    assert set() == open_descriptors() - before
    assert [] == [path for folder in (shm, tmp_path) for path in folder.rglob("*") if not path.is_dir()]


def test_a_file_is_vouched_for_until_somebody_touches_it(shm: Path) -> None:
    """By the process that verified it, also after it was let go of; never on a disk, which may spoil it.

    Fault injection: the time of change is left out of what VouchedFiles compares.
    """
    directory = shm / "weights"
    places = [DirectoryPlace(kind, directory) for kind in (PlaceKind.TMPFS, PlaceKind.FILE)]
    for place, is_vouched in zip(places, (True, False), strict=True):
        holding = Reservation.take(place, "weights", SIZE).publish()
        assert is_vouched == holding.is_vouched()
        holding.let_go()
        taken = [found(place) for _ in range(2)]
        assert [is_vouched] * 2 == [each.is_vouched() for each in taken]
        touch(Path(holding.mapped_path))
        assert not taken[0].is_vouched()
        for each in taken:
            each.release()
    for place in places:
        place.close()


def found(place: DirectoryPlace) -> Holding:
    held = place.shared(make=False).find("weights")
    assert held
    return file_holding(place.kind, held)


def test_a_sealed_memfd_cannot_be_written(shm: Path) -> None:
    """Not even by its maker, whose descriptor is writable."""
    reservation = Reservation.take(MemfdPlace(), "weights", SIZE)
    with reservation.sink.window(0, 4) as window:
        window[:] = b"good"
    holding = reservation.publish()
    descriptor = int(holding.mapped_path.rpartition("/")[2])
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & 0x10
    for attempt in (
        lambda: os.pwrite(descriptor, b"evil", 0),
        lambda: os.ftruncate(descriptor, 0),
        lambda: mmap.mmap(descriptor, SIZE, mmap.MAP_SHARED, mmap.PROT_WRITE),
    ):
        with pytest.raises(PermissionError):
            attempt()
    assert b"good" == os.pread(descriptor, 4, 0)
    holding.release()


def test_pages_are_taken_as_far_as_asked(shm: Path) -> None:
    """All of them, the first ones, or no more once somebody has called it off.

    Fault injection: turns red when SharedMapping.populate does not look at `stop`.
    """
    stop = threading.Event()
    stop.set()
    with (shm / "pages").open("w+b") as file:
        file.truncate(8 << 20)
        with SharedMapping(file.fileno(), 8 << 20) as mapping:
            mapping.populate(None, stop)
            seen = [mapping.smaps().resident_bytes]
            for end in (4 << 20, None):
                mapping.populate(end)
                seen.append(mapping.smaps().resident_bytes)
    (shm / "pages").unlink()
    assert [0, 4 << 20, 8 << 20] == seen


def test_files_of_more_than_2_gib_become_read_only(shm: Path) -> None:
    """A size is no C int. Fault injection: turns red without mprotect's argtypes."""
    size_bytes = (2 << 30) + 4096
    with (shm / "large").open("w+b") as file:
        file.truncate(size_bytes)
        with SharedMapping(file.fileno(), size_bytes) as mapping:
            mapping.make_read_only()
            assert "r--s" == permissions_of(mapping)
    (shm / "large").unlink()


def permissions_of(mapping: SharedMapping) -> str:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{mapping._address():x}-"))


@pytest.mark.parametrize("kind", [PlaceKind.TMPFS, PlaceKind.MEMFD])
def test_pages_come_while_a_file_is_filled_where_its_room_is_certain(kind: PlaceKind, shm: Path) -> None:
    """Elsewhere touching them takes the room, so that is done before anything is read.

    Fault injection: turns red when MemfdSlot claims to have room.
    """
    size_bytes = 40 << 20
    place: Place = MemfdPlace() if kind is PlaceKind.MEMFD else DirectoryPlace(kind, shm / "weights")
    reservation = Reservation.take(place, "w", size_bytes)
    assert reservation._mapping
    taken_bytes = reservation._mapping.smaps().resident_bytes
    with reservation.populating(), reservation.sink.window(0, 4096) as window:
        window[:] = bytes(4096)
    reservation.discard()
    place.close()
    assert (taken_bytes == size_bytes) == (kind is PlaceKind.MEMFD)
    assert 0 < taken_bytes


def test_a_full_tmpfs_refuses_cleanly(shm: Path) -> None:
    """posix_fallocate says ENOSPC where a write would die of SIGBUS."""

    def allocate(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = DirectoryPlace(PlaceKind.DEV_SHM, shm / "weights", allocate=allocate)
    with pytest.raises(OSError, match="No space left"):
        place.reserve("weights", SIZE)
    assert [] == [path for path in shm.rglob("*") if path.is_file()]
    place.close()


def test_a_file_system_that_is_too_small_says_so_with_figures(shm: Path) -> None:
    """Before a byte is written: what is needed, what is held, and how large it is.

    Fault injection: turns red when FileSlot.allocate does not look at the file system's size.
    """
    place = DirectoryPlace(PlaceKind.DEV_SHM, shm / "weights", allocate=lambda *_: None)
    size_bytes = 2 * os.statvfs(shm).f_blocks * os.statvfs(shm).f_frsize
    with pytest.raises(
        OSError, match=rf"needs {size_bytes} \+ holds \d+ > 1 x limit {size_bytes // 2} bytes of"
    ):
        place.reserve("weights", size_bytes)
    assert [] == [path for path in shm.rglob("*") if path.is_file()]
    place.close()


def test_a_weights_dir_on_a_disk_is_no_tmpfs(tmp_path: Path) -> None:
    """Weights that seem to lie in memory but do not would be a silent loss."""
    if mount_of(tmp_path, parse_mounts(Path("/proc/self/mounts").read_text())).is_memory:
        pytest.skip("temporary files lie on a tmpfs here")
    with pytest.raises(OSError, match="not on a tmpfs"):
        DirectoryPlace(PlaceKind.TMPFS, tmp_path / "weights").reserve("weights", SIZE)
    with pytest.raises(OSError, match="no such directory"):
        DirectoryPlace(PlaceKind.TMPFS, tmp_path / "absent" / "weights").reserve("weights", SIZE)


def test_places_are_tried_in_the_given_order(tmp_path: Path) -> None:
    """The configured tmpfs, /dev/shm, anonymous memory, an ordinary file; or the one that is asked for."""
    every = choose_places(None, tmp_path, tmp_path, "weights")
    assert list(PlaceKind) == [place.kind for place in every]
    unconfigured = choose_places(None, None, tmp_path, "weights")
    assert [PlaceKind.DEV_SHM, PlaceKind.MEMFD, PlaceKind.FILE] == [place.kind for place in unconfigured]
    for kind in PlaceKind:
        assert [kind] == [place.kind for place in choose_places(kind, tmp_path, tmp_path, "weights")]


def test_loaders_of_one_store_share_and_others_do_not(tmp_path: Path) -> None:
    """The folder is named after the user and the store, however the store is spelt."""
    (tmp_path / "link").symlink_to(tmp_path / "store")
    folder = folder_name(tmp_path / "store")
    assert folder.startswith(f"halogen-weights-{os.geteuid()}-")
    assert folder == folder_name(tmp_path / "link")
    assert folder != folder_name(tmp_path / "other")


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
tmpfs /dev/shm tmpfs rw,size=64m 0 0
weights /mnt/my\\040weights tmpfs rw,huge=always 0 0
over /mnt/my\\040weights ext4 rw 0 0
disk /mnt/größe ext4 rw 0 0
"""


def test_the_nearest_mount_counts() -> None:
    """Of those above a path the deepest, of those on one point the last."""
    mounts = parse_mounts(MOUNTS)
    assert Mount(Path("/mnt/my weights"), "tmpfs", frozenset({"rw", "huge=always"})) == mounts[2]
    assert "ext4" == mount_of(Path("/mnt/my weights/x"), mounts).kind
    assert Path("/mnt/größe") == mount_of(Path("/mnt/größe/x"), mounts).point
    assert mount_of(Path("/dev/shm/x"), mounts).is_memory
    assert not mount_of(Path("/dev/shmx"), mounts).is_memory


SMAPS = """\
7f0000000000-7f0000400000 rw-s 00000000 00:18 42 /dev/shm/weights
Rss:                4096 kB
Pss:                2048 kB
Private_Dirty:         4 kB
ShmemPmdMapped:     4096 kB
VmFlags: rd wr sh
7f0000400000-7f0000800000 rw-p 00000000 00:00 0
Rss:                4096 kB
Private_Clean:         0 kB
Private_Dirty:      4096 kB
AnonHugePages:         0 kB
"""


def test_smaps_are_read_for_the_right_mapping() -> None:
    """Counters belong to the mapping above them."""
    shared, private = (
        parse_smaps(SMAPS.splitlines(), address) for address in (0x7F0000001000, 0x7F0000400000)
    )
    assert (True, True, 4 << 20, 2 << 20, 4096) == (
        shared.is_shared,
        shared.is_huge,
        shared.huge_bytes,
        shared.pss_bytes,
        shared.private_bytes,
    )
    assert (False, False, 4 << 20) == (private.is_shared, private.is_huge, private.private_bytes)
    with pytest.raises(LookupError):
        parse_smaps(SMAPS.splitlines(), 0x1000)


def test_what_loaders_of_other_stores_left_goes_unless_somebody_holds_it(shm: Path) -> None:
    """A killed loader whose store never gets another one keeps no memory. Own leftovers are there to be adopted.

    Fault injection: leave out `but=place.directory` in `sweep_abandoned`, and the own one goes too.
    """
    own, held, abandoned = (shm / folder_name(shm / store) for store in ("own", "held", "abandoned"))
    place = DirectoryPlace(PlaceKind.DEV_SHM, own)
    holder = DirectoryPlace(PlaceKind.DEV_SHM, held)
    for folder in (own, abandoned):
        folder.mkdir()
    holder.shared(make=True)
    sweep_abandoned([place])
    assert {own, held} == set(shm.iterdir())
    holder.close()
    sweep_abandoned([DirectoryPlace(PlaceKind.DEV_SHM, held)])
    assert [] == list(shm.iterdir())
